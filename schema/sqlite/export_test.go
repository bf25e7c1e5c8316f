package sqlite

// RelayStatements are those statements of the relay that touch the outbox.
var RelayStatements = []string{claimSQL, heldSQL, sentSQL, failSQL, holdRecordsSQL, liftSQL}
