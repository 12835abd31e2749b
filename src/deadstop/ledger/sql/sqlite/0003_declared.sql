-- SPDX-License-Identifier: Apache-2.0
-- Which definition of a tool is the current one, where it is not its newest: an earlier one was declared again.

CREATE TABLE declared (
    tool TEXT NOT NULL,
    n INTEGER NOT NULL,
    version INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (tool, n),
    FOREIGN KEY (tool, version) REFERENCES definition (tool, version)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER declared_fixed BEFORE UPDATE ON declared
BEGIN SELECT RAISE(ABORT, 'deadstop: declarations are only added'); END;
CREATE TRIGGER declared_kept BEFORE DELETE ON declared
BEGIN SELECT RAISE(ABORT, 'deadstop: declarations are only added'); END;
