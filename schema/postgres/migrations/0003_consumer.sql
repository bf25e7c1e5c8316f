-- What each handler of each consumer has applied: one row, written in the
-- transaction of the effect.
CREATE TABLE postbus_inbox (
    consumer     text        NOT NULL,
    handler      text        NOT NULL,
    message_id   text        NOT NULL,
    payload_hash bytea,
    processed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, handler, message_id)
);

-- Messages that a handler could not apply: parked (0) or dead letters (1), as
-- they were received.
CREATE TABLE postbus_parked (
    id              bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    consumer        text        NOT NULL,
    handler         text        NOT NULL,
    message_id      text        NOT NULL,
    topic           text        NOT NULL,
    key             text        NOT NULL DEFAULT '',
    payload         bytea,
    headers         text        NOT NULL DEFAULT '{}',
    state           smallint    NOT NULL,
    attempts        integer     NOT NULL DEFAULT 0,
    redriven        integer     NOT NULL DEFAULT 0,
    first_error     text        NOT NULL DEFAULT '',
    last_error      text        NOT NULL DEFAULT '',
    first_failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_failed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_attempt_at timestamptz,
    UNIQUE (consumer, handler, message_id)
);
CREATE INDEX idx_postbus_parked_lane ON postbus_parked (consumer, handler, topic, key, id);
