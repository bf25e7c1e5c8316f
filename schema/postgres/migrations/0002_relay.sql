-- A relay lives while its lease is ahead of this server's clock.
CREATE TABLE postbus_relays (
    owner       text        PRIMARY KEY,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL
);

-- Who owns which slice of the keys. The number of rows is the number of
-- shards; publishers and relays read it. The epoch grows with every owner.
CREATE TABLE postbus_shards (
    shard smallint PRIMARY KEY,
    owner text,
    epoch bigint   NOT NULL DEFAULT 0
);
INSERT INTO postbus_shards (shard) SELECT generate_series(0, 63);

-- A lane whose oldest record could not be sent: a key; with an empty key one
-- record alone; with an empty key and record 0 the whole topic.
CREATE TABLE postbus_holds (
    shard           smallint    NOT NULL,
    topic           text        NOT NULL,
    key             text        NOT NULL DEFAULT '',
    record          bigint      NOT NULL DEFAULT 0,
    head            bigint      NOT NULL,
    next_attempt_at timestamptz,                     -- NULL: a person lifts it
    reason          text        NOT NULL DEFAULT '',
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (shard, topic, key, record)
);
