-- What each handler of each consumer has applied: one row, written in the
-- transaction of the effect.
CREATE TABLE postbus_inbox (
    consumer     TEXT    NOT NULL,
    handler      TEXT    NOT NULL,
    message_id   TEXT    NOT NULL,
    payload_hash BLOB,
    processed_at INTEGER NOT NULL,
    PRIMARY KEY (consumer, handler, message_id)
) WITHOUT ROWID;

-- Messages that a handler could not apply: parked (0) or dead letters (1), as
-- they were received.
CREATE TABLE postbus_parked (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer        TEXT    NOT NULL,
    handler         TEXT    NOT NULL,
    message_id      TEXT    NOT NULL,
    topic           TEXT    NOT NULL,
    key             TEXT    NOT NULL DEFAULT '',
    payload         BLOB,
    headers         TEXT    NOT NULL DEFAULT '{}',
    state           INTEGER NOT NULL,
    attempts        INTEGER NOT NULL DEFAULT 0,
    redriven        INTEGER NOT NULL DEFAULT 0,
    first_error     TEXT    NOT NULL DEFAULT '',
    last_error      TEXT    NOT NULL DEFAULT '',
    first_failed_at INTEGER NOT NULL,
    last_failed_at  INTEGER NOT NULL,
    next_attempt_at INTEGER,
    UNIQUE (consumer, handler, message_id)
);
CREATE INDEX idx_postbus_parked_lane ON postbus_parked (consumer, handler, topic, key, id);
