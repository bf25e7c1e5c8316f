-- The outbox: what business transactions write and relays send.
--
-- There is no primary key: on the hot path a row is inserted, claimed and
-- deleted, and each of these goes by the one index of waiting rows. Ids are
-- unique because only the sequence draws them. CACHE 1, so that ids follow the
-- order in which they were drawn, across sessions.
CREATE TABLE postbus_outbox (
    id              bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
    message_id      text        NOT NULL,
    topic           text        NOT NULL,
    key             text        NOT NULL DEFAULT '', -- '': no order is kept
    shard           smallint    NOT NULL,
    aggregate_type  text        NOT NULL DEFAULT '',
    event_type      text        NOT NULL DEFAULT '',
    version         integer     NOT NULL DEFAULT 0,
    payload         bytea,                           -- opaque; NULL is nil, not empty
    headers         text        NOT NULL DEFAULT '{}', -- JSON object of strings
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    state           smallint    NOT NULL DEFAULT 0,  -- 0 waiting, 1 held, 2 delayed, 3 quarantined, 4 sent
    retry_count     integer     NOT NULL DEFAULT 0,
    due_at          timestamptz,                     -- delayed: not before
    next_attempt_at timestamptz,                     -- held: not before
    processed_at    timestamptz,                     -- sent and kept
    last_error      text
);

-- The claim: oldest waiting rows of a shard. The only index a fresh row enters.
CREATE INDEX idx_postbus_outbox_claim ON postbus_outbox (shard, id) WHERE state = 0;
-- Rows aside, states 1 to 3: by lane for draining a hold, by id for marking and
-- for tools. The condition is an expression because the planner has statistics
-- about a plain one: taken while no row was aside, they make a scan of all of
-- them look cheap.
CREATE INDEX idx_postbus_outbox_aside_lane ON postbus_outbox (shard, topic, key, id) WHERE state % 4 <> 0;
CREATE INDEX idx_postbus_outbox_aside_id ON postbus_outbox (id) WHERE state % 4 <> 0;
-- Kept rows, for cleaning.
CREATE INDEX idx_postbus_outbox_sent ON postbus_outbox (processed_at) WHERE state = 4;

-- For people: payloads as text where they are text.
CREATE VIEW postbus_outbox_text AS
SELECT id, created_at, state, topic, key, event_type, version, message_id, shard, retry_count, last_error,
       headers, encode(payload, 'escape') AS payload
FROM postbus_outbox;
