// Package schema is the floor of Postbus: what travels and what is stored.
//
// It holds the words that every other package shares: the definition of an
// event ([Define], [Event], [Registry]), the record of the outbox ([Record]),
// the names of the headers on the wire, the transaction that a caller hands in
// ([Tx]), the small contracts that a database and a broker fulfil ([Database],
// [Broker]) and the classes of what can go wrong.
//
// # The way of an event
//
//	Event.New --> Outgoing --Registry.Encode--> *message.Message
//	    --Outbox.Insert--> row --Source.Claim--> Record --Record.Message-->
//	    *message.Message --Publisher--> broker --> *message.Message
//	    --Decode--> Received
//
// # The promise
//
// Payload bytes and headers that Encode produced, or that a plain Watermill
// message carried, reach the handler as they were: nothing on the way parses
// or re-encodes them.
//
// # What it is not
//
// It talks to no database and no broker, starts no goroutine and imports
// nothing but the standard library and Watermill. A database lives in a folder
// below this one, a broker in a folder below eventbus.
package schema
