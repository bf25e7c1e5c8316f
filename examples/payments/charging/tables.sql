-- The tables of the payments service, in SQL that PostgreSQL and SQLite share.

-- What came of each order. No unique key on order_id: it is the inbox that
-- keeps a second charge out, and one that came through would be seen here.
CREATE TABLE IF NOT EXISTS charges (
    order_id TEXT   NOT NULL,
    amount   BIGINT NOT NULL, -- minor units
    currency TEXT   NOT NULL,
    declined TEXT   NOT NULL  -- why it was not charged; '': it was
);

-- The most that one order may cost, by currency.
CREATE TABLE IF NOT EXISTS limits (
    currency TEXT   PRIMARY KEY,
    most     BIGINT NOT NULL -- minor units
);

INSERT INTO limits (currency, most) VALUES ('EUR', 100000) ON CONFLICT DO NOTHING;
