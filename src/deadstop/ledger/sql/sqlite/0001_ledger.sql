-- SPDX-License-Identifier: Apache-2.0
-- The ledger, first form. Times are milliseconds since 1970. Hashes are hex. Triggers refuse what no program of ours does.

CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;

CREATE TABLE definition (
    tool TEXT NOT NULL,
    version INTEGER NOT NULL,
    digest TEXT NOT NULL,
    body TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (tool, version),
    UNIQUE (tool, digest)
) STRICT;

CREATE TABLE operation (
    op_id TEXT PRIMARY KEY,
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    binding TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    tool TEXT NOT NULL,
    definition INTEGER NOT NULL,
    correlation TEXT,
    target TEXT,
    state TEXT NOT NULL CHECK (state IN
        ('PREPARED', 'DISPATCHING', 'SUCCEEDED', 'FAILED', 'UNKNOWN', 'RECONCILING', 'NEEDS_HUMAN', 'ABANDONED')),
    ver INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    owner TEXT,
    lease_ms INTEGER,
    attempts INTEGER NOT NULL,
    request_ms INTEGER NOT NULL,
    recovery_ms INTEGER NOT NULL,
    next_ms INTEGER NOT NULL, -- when somebody has to look at it again
    queries INTEGER NOT NULL,
    verdict TEXT,
    reference TEXT,
    first_sent_ms INTEGER,
    last_sent_ms INTEGER,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    evidence INTEGER NOT NULL, -- entries in its part of the log, and the hash of the last
    head TEXT NOT NULL,
    UNIQUE (scope, key),
    FOREIGN KEY (tool, definition) REFERENCES definition (tool, version),
    CHECK ((owner IS NULL) = (lease_ms IS NULL)),
    CHECK ((owner IS NOT NULL) = (state IN ('DISPATCHING', 'RECONCILING')))
) STRICT;

CREATE INDEX operation_open ON operation (next_ms)
    WHERE state IN ('PREPARED', 'DISPATCHING', 'UNKNOWN', 'RECONCILING');
CREATE INDEX operation_state ON operation (state, created_ms) WHERE state IN
    ('PREPARED', 'DISPATCHING', 'UNKNOWN', 'RECONCILING', 'NEEDS_HUMAN');
CREATE INDEX operation_created ON operation (created_ms);

CREATE TRIGGER operation_born BEFORE INSERT ON operation
WHEN NEW.state <> 'PREPARED' OR NEW.ver <> 1 OR NEW.fence <> 0 OR NEW.attempts <> 0
BEGIN SELECT RAISE(ABORT, 'deadstop: an operation begins as PREPARED'); END;

CREATE TRIGGER operation_transition BEFORE UPDATE OF state ON operation
WHEN OLD.state <> NEW.state AND OLD.state || '>' || NEW.state NOT IN (
    'PREPARED>DISPATCHING', 'PREPARED>ABANDONED',
    'DISPATCHING>SUCCEEDED', 'DISPATCHING>FAILED', 'DISPATCHING>PREPARED', 'DISPATCHING>UNKNOWN',
    'UNKNOWN>RECONCILING', 'UNKNOWN>NEEDS_HUMAN',
    'RECONCILING>SUCCEEDED', 'RECONCILING>FAILED', 'RECONCILING>PREPARED', 'RECONCILING>UNKNOWN',
    'RECONCILING>NEEDS_HUMAN',
    'NEEDS_HUMAN>SUCCEEDED', 'NEEDS_HUMAN>FAILED', 'NEEDS_HUMAN>ABANDONED', 'NEEDS_HUMAN>PREPARED',
    'NEEDS_HUMAN>RECONCILING')
BEGIN SELECT RAISE(ABORT, 'deadstop: this state does not follow that one'); END;

CREATE TRIGGER operation_changed BEFORE UPDATE ON operation
WHEN NEW.fence < OLD.fence OR NEW.attempts < OLD.attempts OR NEW.evidence < OLD.evidence
    OR (NEW.state <> OLD.state AND NEW.ver <> OLD.ver + 1) OR (NEW.state = OLD.state AND NEW.ver <> OLD.ver)
    OR (NEW.state IN ('DISPATCHING', 'RECONCILING') AND NEW.state <> OLD.state AND NEW.fence <> OLD.fence + 1)
    OR NEW.op_id <> OLD.op_id OR NEW.scope <> OLD.scope OR NEW.key <> OLD.key OR NEW.binding <> OLD.binding
    OR NEW.fingerprint <> OLD.fingerprint OR NEW.tool <> OLD.tool OR NEW.definition <> OLD.definition
    OR NEW.created_ms <> OLD.created_ms
BEGIN SELECT RAISE(ABORT, 'deadstop: what an operation is does not change, its counts only grow'); END;

CREATE TRIGGER operation_ended BEFORE UPDATE ON operation
WHEN OLD.state IN ('SUCCEEDED', 'FAILED', 'ABANDONED') AND (NEW.state <> OLD.state OR NEW.fence <> OLD.fence
    OR NEW.attempts <> OLD.attempts OR NEW.reference IS NOT OLD.reference OR NEW.verdict IS NOT OLD.verdict)
BEGIN SELECT RAISE(ABORT, 'deadstop: what is settled stays so'); END;

CREATE TRIGGER operation_kept BEFORE DELETE ON operation
BEGIN SELECT RAISE(ABORT, 'deadstop: operations are never deleted'); END;

CREATE TABLE attempt (
    op_id TEXT NOT NULL REFERENCES operation (op_id),
    n INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    owner TEXT NOT NULL,
    started_ms INTEGER NOT NULL,
    PRIMARY KEY (op_id, n),
    UNIQUE (op_id, fence)
) STRICT, WITHOUT ROWID;

CREATE TABLE attempt_end (
    op_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    ended_ms INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    phase TEXT,
    certain INTEGER NOT NULL,
    observation TEXT NOT NULL,
    receipt TEXT,
    PRIMARY KEY (op_id, n),
    FOREIGN KEY (op_id, n) REFERENCES attempt (op_id, n)
) STRICT, WITHOUT ROWID;

-- What was seen, said and decided, as canonical JSON. `hash` is the leaf of the log, `prev` the one before of the same operation.
CREATE TABLE evidence (
    op_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    kind TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    body TEXT NOT NULL,
    prev TEXT NOT NULL,
    hash TEXT NOT NULL,
    PRIMARY KEY (op_id, n)
) STRICT, WITHOUT ROWID;

-- The order of the whole log.
CREATE TABLE leaf (
    seq INTEGER PRIMARY KEY, -- from 0
    op_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    hash TEXT NOT NULL,
    UNIQUE (op_id, n)
) STRICT;

-- The log's end: how many leaves, and the roots of its whole subtrees, largest first, from which the root follows.
CREATE TABLE head (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    size INTEGER NOT NULL,
    frontier TEXT NOT NULL
) STRICT;
INSERT INTO head VALUES (1, 0, '');

-- Roots of whole subtrees of 256, of 65,536, ... leaves, so that a proof reads a few hundred rows. They follow from `leaf`.
CREATE TABLE node (
    level INTEGER NOT NULL,
    place INTEGER NOT NULL,
    hash TEXT NOT NULL,
    PRIMARY KEY (level, place)
) STRICT, WITHOUT ROWID;

CREATE TABLE checkpoint (size INTEGER PRIMARY KEY, note TEXT NOT NULL, at_ms INTEGER NOT NULL) STRICT;

-- Values that the log names only by digest: deleting a row makes them unreadable, and no proof breaks.
CREATE TABLE payload (
    op_id TEXT NOT NULL,
    name TEXT NOT NULL,
    salt TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (op_id, name)
) STRICT, WITHOUT ROWID;

-- Events to be delivered. Of one `ordering` one after another, by `position`. `next_ms`: when somebody has to look at it.
CREATE TABLE outbox (
    id TEXT PRIMARY KEY,
    dedup TEXT NOT NULL UNIQUE,
    ordering TEXT NOT NULL,
    position INTEGER NOT NULL,
    op_id TEXT,
    url TEXT, -- NULL until it is spread to the receivers there are
    event TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('waiting', 'sending', 'sent', 'dead')),
    fence INTEGER NOT NULL,
    lease_ms INTEGER,
    tries INTEGER NOT NULL,
    next_ms INTEGER NOT NULL,
    problem TEXT,
    created_ms INTEGER NOT NULL,
    UNIQUE (ordering, position)
) STRICT;
CREATE INDEX outbox_due ON outbox (url, next_ms) WHERE state IN ('waiting', 'sending');
CREATE INDEX outbox_open ON outbox (ordering, position) WHERE state IN ('waiting', 'sending');
CREATE INDEX outbox_dead ON outbox (created_ms) WHERE state = 'dead';

-- One row for each cause: repeats only count. `over_ms`: the cause has ended, the next one is told again.
CREATE TABLE alert (
    kind TEXT NOT NULL,
    op_id TEXT NOT NULL,
    detail TEXT NOT NULL,
    first_ms INTEGER NOT NULL,
    last_ms INTEGER NOT NULL,
    count INTEGER NOT NULL,
    delivered_ms INTEGER,
    ack_ms INTEGER,
    ack_by TEXT,
    over_ms INTEGER,
    tries INTEGER NOT NULL,
    next_ms INTEGER NOT NULL,
    PRIMARY KEY (kind, op_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX alert_pending ON alert (next_ms) WHERE delivered_ms IS NULL AND ack_ms IS NULL AND over_ms IS NULL;
CREATE INDEX alert_open ON alert (first_ms) WHERE over_ms IS NULL;

-- Who reconciles, and when last: silence is a fact.
CREATE TABLE beat (name TEXT PRIMARY KEY, owner TEXT NOT NULL, at_ms INTEGER NOT NULL, every_ms INTEGER NOT NULL) STRICT;

CREATE TRIGGER definition_fixed BEFORE UPDATE ON definition
BEGIN SELECT RAISE(ABORT, 'deadstop: definitions are only added'); END;
CREATE TRIGGER definition_kept BEFORE DELETE ON definition
BEGIN SELECT RAISE(ABORT, 'deadstop: definitions are only added'); END;
CREATE TRIGGER attempt_fixed BEFORE UPDATE ON attempt
BEGIN SELECT RAISE(ABORT, 'deadstop: attempts are only added'); END;
CREATE TRIGGER attempt_kept BEFORE DELETE ON attempt
BEGIN SELECT RAISE(ABORT, 'deadstop: attempts are only added'); END;
CREATE TRIGGER attempt_end_fixed BEFORE UPDATE ON attempt_end
BEGIN SELECT RAISE(ABORT, 'deadstop: the end of an attempt is written once'); END;
CREATE TRIGGER attempt_end_kept BEFORE DELETE ON attempt_end
BEGIN SELECT RAISE(ABORT, 'deadstop: the end of an attempt is written once'); END;
CREATE TRIGGER evidence_fixed BEFORE UPDATE ON evidence
BEGIN SELECT RAISE(ABORT, 'deadstop: evidence is only added'); END;
CREATE TRIGGER evidence_kept BEFORE DELETE ON evidence
BEGIN SELECT RAISE(ABORT, 'deadstop: evidence is only added'); END;
CREATE TRIGGER leaf_fixed BEFORE UPDATE ON leaf
BEGIN SELECT RAISE(ABORT, 'deadstop: the log is only added to'); END;
CREATE TRIGGER leaf_kept BEFORE DELETE ON leaf
BEGIN SELECT RAISE(ABORT, 'deadstop: the log is only added to'); END;
CREATE TRIGGER node_fixed BEFORE UPDATE ON node
BEGIN SELECT RAISE(ABORT, 'deadstop: the log is only added to'); END;
CREATE TRIGGER node_kept BEFORE DELETE ON node
BEGIN SELECT RAISE(ABORT, 'deadstop: the log is only added to'); END;
CREATE TRIGGER head_grows BEFORE UPDATE ON head WHEN NEW.size < OLD.size
BEGIN SELECT RAISE(ABORT, 'deadstop: the log is only added to'); END;
