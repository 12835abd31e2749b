-- SPDX-License-Identifier: Apache-2.0
-- Which definition of a tool is the current one, where it is not its newest: an earlier one was declared again.
--   GRANT SELECT, INSERT ON declared TO agents;

CREATE TABLE declared (
    tool TEXT COLLATE "C" NOT NULL,
    n BIGINT NOT NULL,
    version BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (tool, n),
    FOREIGN KEY (tool, version) REFERENCES definition (tool, version)
);

CREATE TRIGGER declared_fixed BEFORE UPDATE OR DELETE OR TRUNCATE ON declared
    EXECUTE FUNCTION refused('declarations are only added');
