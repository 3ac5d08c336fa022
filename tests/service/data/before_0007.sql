ALTER TABLE jobs DROP COLUMN deaths;
ALTER TABLE jobs DROP COLUMN furthest;
ALTER TABLE jobs DROP COLUMN log;
CREATE TABLE job_attempts (job_id VARCHAR(32), number INTEGER, log TEXT);
INSERT INTO job_attempts SELECT id, attempts, 'log ' || id FROM jobs;
INSERT INTO job_attempts SELECT id, 0, 'an earlier one' FROM jobs;
ALTER TABLE job_chains ADD COLUMN attempt INTEGER DEFAULT 1;
UPDATE job_chains SET attempt = id;
INSERT INTO job_chains (id, job_id, attempt, kind, chain_id, type, message)
    VALUES (9, '3', 1, 'note', 'x', '', 'of an earlier run');
DROP INDEX ix_job_chains_job;
CREATE INDEX ix_job_chains_attempt ON job_chains (job_id, attempt, kind, id);
ALTER TABLE tokens ADD COLUMN max_jobs INTEGER DEFAULT 7;
ALTER TABLE tickets ADD COLUMN charged INTEGER DEFAULT 7;
CREATE TABLE webhooks (id INTEGER PRIMARY KEY);
CREATE TABLE uploads (id INTEGER PRIMARY KEY);
CREATE TABLE runs (id INTEGER PRIMARY KEY);
CREATE TABLE sessions (id INTEGER PRIMARY KEY);
CREATE TABLE ref_intents (id INTEGER PRIMARY KEY);
INSERT INTO webhooks VALUES (1);
INSERT INTO uploads VALUES (1);
INSERT INTO runs VALUES (1);
INSERT INTO sessions VALUES (1);
INSERT INTO ref_intents VALUES (1);
UPDATE alembic_version SET version_num = '0005'
