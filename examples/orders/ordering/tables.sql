-- The tables of the orders service, in SQL that PostgreSQL and SQLite share.

CREATE TABLE IF NOT EXISTS orders (
    id       TEXT   PRIMARY KEY,
    customer TEXT   NOT NULL,
    amount   BIGINT NOT NULL, -- minor units
    currency TEXT   NOT NULL,
    status   TEXT   NOT NULL  -- placed, paid, declined
);

-- What happened to each order after it was placed. No unique key: it is the
-- inbox that keeps a second entry out, and one that came through would be seen
-- here.
CREATE TABLE IF NOT EXISTS order_log (
    order_id TEXT NOT NULL,
    status   TEXT NOT NULL,
    reason   TEXT NOT NULL
);
