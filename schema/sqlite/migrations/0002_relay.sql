-- A relay lives while its lease is ahead of the clock.
CREATE TABLE postbus_relays (
    owner       TEXT    PRIMARY KEY,
    started_at  INTEGER NOT NULL,
    lease_until INTEGER NOT NULL
);

-- Who owns which slice of the keys. The number of rows is the number of
-- shards; publishers and relays read it. The epoch grows with every owner.
CREATE TABLE postbus_shards (
    shard INTEGER PRIMARY KEY,
    owner TEXT,
    epoch INTEGER NOT NULL DEFAULT 0
);
INSERT INTO postbus_shards (shard)
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 63) SELECT i FROM n;

-- A lane whose oldest record could not be sent: a key; with an empty key one
-- record alone; with an empty key and record 0 the whole topic.
CREATE TABLE postbus_holds (
    shard           INTEGER NOT NULL,
    topic           TEXT    NOT NULL,
    key             TEXT    NOT NULL DEFAULT '',
    record          INTEGER NOT NULL DEFAULT 0,
    head            INTEGER NOT NULL,
    next_attempt_at INTEGER,                     -- NULL: a person lifts it
    reason          TEXT    NOT NULL DEFAULT '',
    created_at      INTEGER NOT NULL,
    PRIMARY KEY (shard, topic, key, record)
);
