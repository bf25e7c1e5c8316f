-- The outbox: what business transactions write and relays send.
-- AUTOINCREMENT, so that an id is never drawn again after its row is gone.
-- Times are microseconds since 1970 in UTC.
CREATE TABLE postbus_outbox (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id      TEXT    NOT NULL,
    topic           TEXT    NOT NULL,
    key             TEXT    NOT NULL DEFAULT '', -- '': no order is kept
    shard           INTEGER NOT NULL,
    aggregate_type  TEXT    NOT NULL DEFAULT '',
    event_type      TEXT    NOT NULL DEFAULT '',
    version         INTEGER NOT NULL DEFAULT 0,
    payload         BLOB,                        -- opaque; NULL is nil, not empty
    headers         TEXT    NOT NULL DEFAULT '{}', -- JSON object of strings
    created_at      INTEGER NOT NULL,
    state           INTEGER NOT NULL DEFAULT 0,  -- 0 waiting, 1 held, 2 delayed, 3 quarantined, 4 sent
    retry_count     INTEGER NOT NULL DEFAULT 0,
    due_at          INTEGER,                     -- delayed: not before
    next_attempt_at INTEGER,                     -- held: not before
    processed_at    INTEGER,                     -- sent and kept
    last_error      TEXT
);

-- The claim: oldest waiting rows of a shard.
CREATE INDEX idx_postbus_outbox_claim ON postbus_outbox (shard, id) WHERE state = 0;
-- Rows aside, by lane, for draining a hold.
CREATE INDEX idx_postbus_outbox_aside_lane ON postbus_outbox (shard, topic, key, id) WHERE state IN (1, 2, 3);
-- Kept rows, for cleaning.
CREATE INDEX idx_postbus_outbox_sent ON postbus_outbox (processed_at) WHERE state = 4;

-- For people: payloads as text.
CREATE VIEW postbus_outbox_text AS
SELECT id, created_at, state, topic, key, event_type, version, message_id, shard, retry_count, last_error,
       headers, CAST(payload AS TEXT) AS payload
FROM postbus_outbox;
