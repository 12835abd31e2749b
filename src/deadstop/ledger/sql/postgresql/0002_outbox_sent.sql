-- SPDX-License-Identifier: Apache-2.0
-- What was sent is pruned some time later: then its `next_ms` says when it was sent.
-- The role that runs deadstop needs one more right, or nothing is pruned:
--   GRANT DELETE ON outbox TO agents;

CREATE INDEX outbox_sent ON outbox (next_ms) WHERE state = 'sent';
