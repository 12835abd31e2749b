-- SPDX-License-Identifier: Apache-2.0
-- The ledger, first form: what sql/sqlite/0001_ledger.sql says, for PostgreSQL. Times are milliseconds since 1970. Hashes
-- are hex. Texts compare byte by byte (COLLATE "C"), as they do in SQLite: ranges and orders must not hang on a locale.
-- Triggers refuse what no program of ours does. The owner of a table can take its triggers away: let deadstop run as
-- another role than the one that made the tables, and give it no more than this, whichever schema they are in:
--   GRANT SELECT ON migration TO agents;
--   GRANT SELECT, INSERT ON meta, definition, attempt, attempt_end, evidence, leaf, node, checkpoint TO agents;
--   GRANT SELECT, INSERT, UPDATE ON operation, outbox, alert, beat TO agents;
--   GRANT SELECT, UPDATE ON head TO agents;
--   GRANT SELECT, INSERT, DELETE ON payload, unplaced TO agents;

CREATE TABLE meta (name TEXT COLLATE "C" PRIMARY KEY, value TEXT NOT NULL);

CREATE TABLE definition (
    tool TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL,
    digest TEXT COLLATE "C" NOT NULL,
    body TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (tool, version),
    UNIQUE (tool, digest)
);

CREATE TABLE operation (
    op_id TEXT COLLATE "C" PRIMARY KEY,
    scope TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    binding TEXT COLLATE "C" NOT NULL,
    fingerprint TEXT COLLATE "C" NOT NULL,
    tool TEXT COLLATE "C" NOT NULL,
    definition BIGINT NOT NULL,
    correlation TEXT COLLATE "C",
    target TEXT COLLATE "C",
    state TEXT COLLATE "C" NOT NULL CHECK (state IN
        ('PREPARED', 'DISPATCHING', 'SUCCEEDED', 'FAILED', 'UNKNOWN', 'RECONCILING', 'NEEDS_HUMAN', 'ABANDONED')),
    ver BIGINT NOT NULL,
    fence BIGINT NOT NULL,
    owner TEXT COLLATE "C",
    lease_ms BIGINT,
    attempts BIGINT NOT NULL,
    request_ms BIGINT NOT NULL,
    recovery_ms BIGINT NOT NULL,
    next_ms BIGINT NOT NULL, -- when somebody has to look at it again
    queries BIGINT NOT NULL,
    verdict TEXT COLLATE "C",
    reference TEXT COLLATE "C",
    first_sent_ms BIGINT,
    last_sent_ms BIGINT,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    evidence BIGINT NOT NULL, -- entries in its part of the log, and the hash of the last
    head TEXT COLLATE "C" NOT NULL,
    UNIQUE (scope, key),
    CHECK ((owner IS NULL) = (lease_ms IS NULL)),
    CHECK ((owner IS NOT NULL) = (state IN ('DISPATCHING', 'RECONCILING')))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02); -- each is written three times, and kept for ever

CREATE INDEX operation_open ON operation (next_ms)
    WHERE state IN ('PREPARED', 'DISPATCHING', 'UNKNOWN', 'RECONCILING');
CREATE INDEX operation_state ON operation (state, created_ms) WHERE state IN
    ('PREPARED', 'DISPATCHING', 'UNKNOWN', 'RECONCILING', 'NEEDS_HUMAN');
CREATE INDEX operation_created ON operation (created_ms);

-- The definition is looked up here, not by a foreign key: that would lock its one row for every operation of the tool.
-- Definitions are only added, so what was there when the operation began stays there.
CREATE FUNCTION operation_born() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state <> 'PREPARED' OR NEW.ver <> 1 OR NEW.fence <> 0 OR NEW.attempts <> 0 THEN
        RAISE EXCEPTION 'deadstop: an operation begins as PREPARED' USING ERRCODE = 'check_violation';
    END IF;
    IF NOT EXISTS (SELECT FROM definition AS d WHERE d.tool = NEW.tool AND d.version = NEW.definition) THEN
        RAISE EXCEPTION 'deadstop: there is no such definition' USING ERRCODE = 'foreign_key_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER operation_born BEFORE INSERT ON operation FOR EACH ROW EXECUTE FUNCTION operation_born();

CREATE FUNCTION operation_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state <> NEW.state AND OLD.state || '>' || NEW.state NOT IN (
        'PREPARED>DISPATCHING', 'PREPARED>ABANDONED',
        'DISPATCHING>SUCCEEDED', 'DISPATCHING>FAILED', 'DISPATCHING>PREPARED', 'DISPATCHING>UNKNOWN',
        'UNKNOWN>RECONCILING', 'UNKNOWN>NEEDS_HUMAN',
        'RECONCILING>SUCCEEDED', 'RECONCILING>FAILED', 'RECONCILING>PREPARED', 'RECONCILING>UNKNOWN',
        'RECONCILING>NEEDS_HUMAN',
        'NEEDS_HUMAN>SUCCEEDED', 'NEEDS_HUMAN>FAILED', 'NEEDS_HUMAN>ABANDONED', 'NEEDS_HUMAN>PREPARED',
        'NEEDS_HUMAN>RECONCILING')
    THEN
        RAISE EXCEPTION 'deadstop: this state does not follow that one' USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.fence < OLD.fence OR NEW.attempts < OLD.attempts OR NEW.evidence < OLD.evidence
        OR (NEW.state <> OLD.state AND NEW.ver <> OLD.ver + 1) OR (NEW.state = OLD.state AND NEW.ver <> OLD.ver)
        OR (NEW.state IN ('DISPATCHING', 'RECONCILING') AND NEW.state <> OLD.state AND NEW.fence <> OLD.fence + 1)
        OR NEW.op_id <> OLD.op_id OR NEW.scope <> OLD.scope OR NEW.key <> OLD.key OR NEW.binding <> OLD.binding
        OR NEW.fingerprint <> OLD.fingerprint OR NEW.tool <> OLD.tool OR NEW.definition <> OLD.definition
        OR NEW.created_ms <> OLD.created_ms
    THEN
        RAISE EXCEPTION 'deadstop: what an operation is does not change, its counts only grow'
            USING ERRCODE = 'check_violation';
    END IF;
    IF OLD.state IN ('SUCCEEDED', 'FAILED', 'ABANDONED') AND (NEW.state <> OLD.state OR NEW.fence <> OLD.fence
        OR NEW.attempts <> OLD.attempts OR NEW.reference IS DISTINCT FROM OLD.reference
        OR NEW.verdict IS DISTINCT FROM OLD.verdict)
    THEN
        RAISE EXCEPTION 'deadstop: what is settled stays so' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER operation_changed BEFORE UPDATE ON operation FOR EACH ROW EXECUTE FUNCTION operation_changed();

-- One that refuses whatever it is called for; its argument says why.
CREATE FUNCTION refused() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'deadstop: %', TG_ARGV[0] USING ERRCODE = 'check_violation';
END $$;

CREATE TRIGGER operation_kept BEFORE DELETE OR TRUNCATE ON operation
    EXECUTE FUNCTION refused('operations are never deleted');

CREATE TABLE attempt (
    op_id TEXT COLLATE "C" NOT NULL REFERENCES operation (op_id),
    n BIGINT NOT NULL,
    fence BIGINT NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    started_ms BIGINT NOT NULL,
    PRIMARY KEY (op_id, n),
    UNIQUE (op_id, fence)
);

CREATE TABLE attempt_end (
    op_id TEXT COLLATE "C" NOT NULL,
    n BIGINT NOT NULL,
    ended_ms BIGINT NOT NULL,
    outcome TEXT NOT NULL,
    phase TEXT,
    certain BIGINT NOT NULL,
    observation TEXT NOT NULL,
    receipt TEXT,
    PRIMARY KEY (op_id, n),
    FOREIGN KEY (op_id, n) REFERENCES attempt (op_id, n)
);

-- What was seen, said and decided, as canonical JSON. `hash` is the leaf of the log, `prev` the one before of the same operation.
CREATE TABLE evidence (
    op_id TEXT COLLATE "C" NOT NULL,
    n BIGINT NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    at_ms BIGINT NOT NULL,
    body TEXT NOT NULL,
    prev TEXT COLLATE "C" NOT NULL,
    hash TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (op_id, n)
);

-- Entries that wait for their places in the whole log. Whoever gives one to them takes them out. (In SQLite each gets its
-- place at once; here that would make every writer wait for every other one.)
CREATE TABLE unplaced (
    op_id TEXT COLLATE "C" NOT NULL,
    n BIGINT NOT NULL,
    PRIMARY KEY (op_id, n)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE FUNCTION evidence_waits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO unplaced (op_id, n) VALUES (NEW.op_id, NEW.n);
    RETURN NULL;
END $$;
CREATE TRIGGER evidence_waits AFTER INSERT ON evidence FOR EACH ROW EXECUTE FUNCTION evidence_waits();

-- The order of the whole log.
CREATE TABLE leaf (
    seq BIGINT PRIMARY KEY, -- from 0
    op_id TEXT COLLATE "C" NOT NULL,
    n BIGINT NOT NULL,
    hash TEXT COLLATE "C" NOT NULL,
    UNIQUE (op_id, n)
);

-- The log's end: how many leaves, and the roots of its whole subtrees, largest first, from which the root follows.
CREATE TABLE head (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    size BIGINT NOT NULL,
    frontier TEXT NOT NULL
);
INSERT INTO head VALUES (1, 0, '');

-- Roots of whole subtrees of 256, of 65,536, ... leaves, so that a proof reads a few hundred rows. They follow from `leaf`.
CREATE TABLE node (
    level BIGINT NOT NULL,
    place BIGINT NOT NULL,
    hash TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (level, place)
);

CREATE TABLE checkpoint (size BIGINT PRIMARY KEY, note TEXT NOT NULL, at_ms BIGINT NOT NULL);

-- Values that the log names only by digest: deleting a row makes them unreadable, and no proof breaks.
CREATE TABLE payload (
    op_id TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    salt TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (op_id, name)
);

CREATE TABLE outbox (
    id TEXT COLLATE "C" PRIMARY KEY,
    dedup TEXT COLLATE "C" NOT NULL UNIQUE,
    ordering TEXT COLLATE "C" NOT NULL,
    position BIGINT NOT NULL,
    op_id TEXT COLLATE "C",
    url TEXT COLLATE "C",
    event TEXT NOT NULL,
    state TEXT COLLATE "C" NOT NULL CHECK (state IN ('waiting', 'sending', 'sent', 'dead')),
    fence BIGINT NOT NULL,
    lease_ms BIGINT,
    tries BIGINT NOT NULL,
    next_ms BIGINT NOT NULL,
    problem TEXT,
    created_ms BIGINT NOT NULL,
    UNIQUE (ordering, position)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX outbox_due ON outbox (url, next_ms) WHERE state IN ('waiting', 'sending');
CREATE INDEX outbox_open ON outbox (ordering, position) WHERE state IN ('waiting', 'sending');
CREATE INDEX outbox_dead ON outbox (created_ms) WHERE state = 'dead';

CREATE TABLE alert (
    kind TEXT COLLATE "C" NOT NULL,
    op_id TEXT COLLATE "C" NOT NULL,
    detail TEXT NOT NULL,
    first_ms BIGINT NOT NULL,
    last_ms BIGINT NOT NULL,
    count BIGINT NOT NULL,
    delivered_ms BIGINT,
    ack_ms BIGINT,
    ack_by TEXT,
    over_ms BIGINT,
    tries BIGINT NOT NULL,
    next_ms BIGINT NOT NULL,
    PRIMARY KEY (kind, op_id)
);
CREATE INDEX alert_pending ON alert (next_ms) WHERE delivered_ms IS NULL AND ack_ms IS NULL AND over_ms IS NULL;
CREATE INDEX alert_open ON alert (first_ms) WHERE over_ms IS NULL;

-- Who reconciles, and when last: silence is a fact.
CREATE TABLE beat (
    name TEXT COLLATE "C" PRIMARY KEY, owner TEXT NOT NULL, at_ms BIGINT NOT NULL, every_ms BIGINT NOT NULL
);

-- For each row, and for the statement as a whole where it may be TRUNCATE, which no row hears of.
CREATE TRIGGER definition_fixed BEFORE UPDATE OR DELETE OR TRUNCATE ON definition
    EXECUTE FUNCTION refused('definitions are only added');
CREATE TRIGGER attempt_fixed BEFORE UPDATE OR DELETE OR TRUNCATE ON attempt
    EXECUTE FUNCTION refused('attempts are only added');
CREATE TRIGGER attempt_end_fixed BEFORE UPDATE OR DELETE OR TRUNCATE ON attempt_end
    EXECUTE FUNCTION refused('the end of an attempt is written once');
CREATE TRIGGER evidence_fixed BEFORE UPDATE OR DELETE OR TRUNCATE ON evidence
    EXECUTE FUNCTION refused('evidence is only added');
CREATE TRIGGER leaf_fixed BEFORE UPDATE OR DELETE OR TRUNCATE ON leaf
    EXECUTE FUNCTION refused('the log is only added to');

CREATE TRIGGER node_fixed BEFORE UPDATE OR DELETE OR TRUNCATE ON node
    EXECUTE FUNCTION refused('the log is only added to');

CREATE FUNCTION head_grows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.size < OLD.size THEN
        RAISE EXCEPTION 'deadstop: the log is only added to' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER head_grows BEFORE UPDATE ON head FOR EACH ROW EXECUTE FUNCTION head_grows();
