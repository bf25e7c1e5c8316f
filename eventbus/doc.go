// Package eventbus is the front door of Postbus: it joins outbox, relay,
// broker, inbox and handlers, and picks database and broker from a
// configuration.
//
//	bus, err := eventbus.Open(ctx, db, cfg)
//	err = bus.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error { ...; return bus.Publish(ctx, tx, event) })
//	err = bus.Consume("payments", handlers.On(Placed, "charge", charge))
//	err = bus.Run(ctx)
//
// # The life of a bus
//
//	Open --> Consume, Publish, InTx --> Run --ctx ends--> drained --> Close
//
// Run is RunRelay and RunConsumers together; a process that only publishes
// calls neither, one that only relays calls RunRelay alone.
//
// # What it promises
//
//   - An event is relayed if and only if the transaction that published it
//     committed.
//   - What a handler writes through its transaction happens once per message,
//     as long as the inbox remembers it.
//   - Events of one topic and key are handled in the order in which they were
//     published.
//   - Stopping loses nothing: what is in flight is finished, or left for the
//     next process.
//
// # What it is not
//
// It opens and closes no database, runs no DDL outside [Migrate], and listens
// on no port. Everything it joins can be used without it.
package eventbus
