-- A PostgreSQL database of the release before revision 0006, as pg_dump --inserts wrote it.
SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.audit (
    id integer NOT NULL,
    at double precision NOT NULL,
    principal character varying(128) NOT NULL,
    action character varying(64) NOT NULL,
    subject character varying(256) NOT NULL,
    detail json NOT NULL
);
CREATE SEQUENCE public.audit_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.audit_id_seq OWNED BY public.audit.id;
CREATE TABLE public.datasets (
    id integer NOT NULL,
    name character varying(128) NOT NULL,
    folded character varying(128) NOT NULL,
    uri text NOT NULL,
    place text NOT NULL,
    description text NOT NULL,
    created_at double precision NOT NULL
);
CREATE SEQUENCE public.datasets_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.datasets_id_seq OWNED BY public.datasets.id;
CREATE TABLE public.deliveries (
    id character varying(32) NOT NULL,
    webhook_id character varying(16) NOT NULL,
    subject character varying(32) NOT NULL,
    at double precision NOT NULL,
    body json NOT NULL,
    attempts integer NOT NULL,
    due_at double precision,
    outcome text NOT NULL
);
CREATE TABLE public.idempotency (
    principal character varying(128) NOT NULL,
    key character varying(128) NOT NULL,
    request_sha256 character varying(64) NOT NULL,
    status integer,
    media_type character varying(128) NOT NULL,
    location text NOT NULL,
    body bytea NOT NULL,
    created_at double precision NOT NULL
);
CREATE TABLE public.job_attempts (
    id integer NOT NULL,
    job_id character varying(32) NOT NULL,
    number integer NOT NULL,
    principal character varying(128) NOT NULL,
    state character varying(16) NOT NULL,
    started_at double precision NOT NULL,
    ended_at double precision,
    progress json NOT NULL,
    result json NOT NULL,
    error text NOT NULL,
    log text NOT NULL
);
CREATE SEQUENCE public.job_attempts_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.job_attempts_id_seq OWNED BY public.job_attempts.id;
CREATE TABLE public.job_chains (
    id integer NOT NULL,
    job_id character varying(32) NOT NULL,
    attempt integer NOT NULL,
    kind character varying(8) NOT NULL,
    chain_id text NOT NULL,
    type text NOT NULL,
    message text NOT NULL,
    path text,
    line integer
);
CREATE SEQUENCE public.job_chains_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.job_chains_id_seq OWNED BY public.job_chains.id;
CREATE TABLE public.jobs (
    id character varying(32) NOT NULL,
    dataset_id integer NOT NULL,
    spec json NOT NULL,
    state character varying(16) NOT NULL,
    attempts integer NOT NULL,
    progress json NOT NULL,
    result json NOT NULL,
    error text NOT NULL,
    message text NOT NULL,
    retry boolean NOT NULL,
    created_at double precision NOT NULL,
    updated_at double precision NOT NULL,
    principal character varying(128) NOT NULL,
    charged_to character varying(128) NOT NULL
);
CREATE TABLE public.ref_intents (
    id integer NOT NULL,
    dataset_id integer NOT NULL,
    ref character varying(128) NOT NULL,
    digest character varying(64) NOT NULL,
    previous character varying(64),
    principal character varying(128) NOT NULL,
    job_id character varying(32),
    message text NOT NULL,
    at double precision NOT NULL
);
CREATE SEQUENCE public.ref_intents_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.ref_intents_id_seq OWNED BY public.ref_intents.id;
CREATE TABLE public.ref_moves (
    id integer NOT NULL,
    dataset_id integer NOT NULL,
    ref character varying(128) NOT NULL,
    digest character varying(64) NOT NULL,
    previous character varying(64),
    moved_at double precision NOT NULL,
    principal character varying(128) NOT NULL,
    job_id character varying(32),
    message text NOT NULL
);
CREATE SEQUENCE public.ref_moves_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.ref_moves_id_seq OWNED BY public.ref_moves.id;
CREATE TABLE public.ref_policies (
    dataset_id integer NOT NULL,
    ref character varying(128) NOT NULL,
    protected boolean NOT NULL,
    reviewer character varying(16) NOT NULL,
    forbid json NOT NULL,
    apart_from json NOT NULL,
    updated_at double precision NOT NULL,
    principal character varying(128) NOT NULL
);
CREATE TABLE public.runs (
    name character varying(128) NOT NULL,
    dataset_id integer NOT NULL,
    folder text NOT NULL,
    description text NOT NULL,
    created_at double precision NOT NULL,
    principal character varying(128) NOT NULL
);
CREATE TABLE public.secrets (
    name character varying(64) NOT NULL,
    value bytea NOT NULL
);
CREATE TABLE public.sessions (
    secret_sha256 bytea NOT NULL,
    token_id character varying(16) NOT NULL,
    expires_at double precision NOT NULL
);
CREATE TABLE public.snapshots (
    dataset_id integer NOT NULL,
    digest character varying(64) NOT NULL,
    written_at double precision NOT NULL
);
CREATE TABLE public.tickets (
    id character varying(64) NOT NULL,
    place character varying(64) NOT NULL,
    principal character varying(128) NOT NULL,
    names json NOT NULL,
    sequences json NOT NULL,
    mode character varying(40) NOT NULL,
    state character varying(16) NOT NULL,
    message text NOT NULL,
    charged integer NOT NULL,
    made_at double precision NOT NULL,
    taken_at double precision NOT NULL
);
CREATE TABLE public.tokens (
    id character varying(16) NOT NULL,
    parent character varying(16),
    label character varying(128) NOT NULL,
    secret_sha256 bytea NOT NULL,
    scopes json NOT NULL,
    datasets json,
    roots json,
    max_jobs integer,
    max_chains integer,
    max_bytes bigint,
    created_at double precision NOT NULL,
    expires_at double precision,
    revoked_at double precision,
    last_used_at double precision
);
CREATE TABLE public.uploads (
    id integer NOT NULL,
    dataset_id integer NOT NULL,
    shard character varying(128) NOT NULL,
    nbytes bigint NOT NULL,
    principal character varying(128) NOT NULL,
    at double precision NOT NULL
);
CREATE SEQUENCE public.uploads_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.uploads_id_seq OWNED BY public.uploads.id;
CREATE TABLE public.webhooks (
    id character varying(16) NOT NULL,
    url text NOT NULL,
    secret bytea NOT NULL,
    datasets json,
    events json,
    after_move integer DEFAULT 0 NOT NULL,
    principal character varying(128) NOT NULL,
    created_at double precision NOT NULL,
    disabled text NOT NULL
);
ALTER TABLE ONLY public.audit ALTER COLUMN id SET DEFAULT nextval('public.audit_id_seq'::regclass);
ALTER TABLE ONLY public.datasets ALTER COLUMN id SET DEFAULT nextval('public.datasets_id_seq'::regclass);
ALTER TABLE ONLY public.job_attempts ALTER COLUMN id SET DEFAULT nextval('public.job_attempts_id_seq'::regclass);
ALTER TABLE ONLY public.job_chains ALTER COLUMN id SET DEFAULT nextval('public.job_chains_id_seq'::regclass);
ALTER TABLE ONLY public.ref_intents ALTER COLUMN id SET DEFAULT nextval('public.ref_intents_id_seq'::regclass);
ALTER TABLE ONLY public.ref_moves ALTER COLUMN id SET DEFAULT nextval('public.ref_moves_id_seq'::regclass);
ALTER TABLE ONLY public.uploads ALTER COLUMN id SET DEFAULT nextval('public.uploads_id_seq'::regclass);
INSERT INTO public.alembic_version VALUES ('0005');
INSERT INTO public.audit VALUES (1, 1795536601.213169, 'local', 'token.create', '9d689316406da15f', '{"label": "old", "scopes": ["admin", "publish", "read"]}');
INSERT INTO public.audit VALUES (2, 1795536618.6706853, 'local', 'dataset.register', 'pdb', '{"uri": "/srv/evofeed/data/pdb"}');
INSERT INTO public.audit VALUES (3, 1795536618.7005482, 'local', 'dataset.register', 'real', '{"uri": "/srv/evofeed/data/real"}');
INSERT INTO public.audit VALUES (4, 1795536618.8718596, '9d689316406da15f', 'ref.move', 'real/next', '{"digest": "b33d9733aec453c8ef50a5205262dbcd93784392761580950bb45e0e66f93ce4", "previous": null}');
INSERT INTO public.datasets VALUES (1, 'pdb', 'pdb', '/srv/evofeed/data/pdb', '/srv/evofeed/data/pdb', 'kept', 1795536618.6705308);
INSERT INTO public.datasets VALUES (2, 'real', 'real', '/srv/evofeed/data/real', '/srv/evofeed/data/real', '', 1795536618.700474);
INSERT INTO public.ref_moves VALUES (1, 2, 'main', 'b33d9733aec453c8ef50a5205262dbcd93784392761580950bb45e0e66f93ce4', NULL, 1795536607, 'store', NULL, '');
INSERT INTO public.ref_moves VALUES (2, 2, 'next', 'b33d9733aec453c8ef50a5205262dbcd93784392761580950bb45e0e66f93ce4', NULL, 1795536618, '9d689316406da15f', NULL, 'May release');
INSERT INTO public.secrets VALUES ('cursor', '\xe16aa85a88221c3db3542c6d9456d8cf2d0b785818caa881f6b6be9c367a8bbb');
INSERT INTO public.tokens VALUES ('9d689316406da15f', NULL, 'old', '\xb22f27cbb0bb431bce93eda616aeeaa23efc225361bfb8a11f34e460124a8908', '["admin", "publish", "read"]', 'null', 'null', NULL, NULL, NULL, 1795536601.1750138, NULL, NULL, 1795536618.5409596);
SELECT pg_catalog.setval('public.audit_id_seq', 4, true);
SELECT pg_catalog.setval('public.datasets_id_seq', 2, true);
SELECT pg_catalog.setval('public.job_attempts_id_seq', 1, false);
SELECT pg_catalog.setval('public.job_chains_id_seq', 1, false);
SELECT pg_catalog.setval('public.ref_intents_id_seq', 1, true);
SELECT pg_catalog.setval('public.ref_moves_id_seq', 2, true);
SELECT pg_catalog.setval('public.uploads_id_seq', 1, false);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkey PRIMARY KEY (version_num);
ALTER TABLE ONLY public.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.datasets
    ADD CONSTRAINT datasets_folded_key UNIQUE (folded);
ALTER TABLE ONLY public.datasets
    ADD CONSTRAINT datasets_name_key UNIQUE (name);
ALTER TABLE ONLY public.datasets
    ADD CONSTRAINT datasets_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.datasets
    ADD CONSTRAINT datasets_place_key UNIQUE (place);
ALTER TABLE ONLY public.deliveries
    ADD CONSTRAINT deliveries_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.idempotency
    ADD CONSTRAINT idempotency_pkey PRIMARY KEY (principal, key);
ALTER TABLE ONLY public.job_attempts
    ADD CONSTRAINT job_attempts_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.job_chains
    ADD CONSTRAINT job_chains_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.ref_intents
    ADD CONSTRAINT ref_intents_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.ref_moves
    ADD CONSTRAINT ref_moves_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.ref_policies
    ADD CONSTRAINT ref_policies_pkey PRIMARY KEY (dataset_id, ref);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.secrets
    ADD CONSTRAINT secrets_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.sessions
    ADD CONSTRAINT sessions_pkey PRIMARY KEY (secret_sha256);
ALTER TABLE ONLY public.snapshots
    ADD CONSTRAINT snapshots_pkey PRIMARY KEY (dataset_id, digest);
ALTER TABLE ONLY public.tickets
    ADD CONSTRAINT tickets_pkey PRIMARY KEY (id, place);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT tokens_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.uploads
    ADD CONSTRAINT uploads_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.deliveries
    ADD CONSTRAINT uq_deliveries_end UNIQUE (webhook_id, subject, at);
ALTER TABLE ONLY public.job_attempts
    ADD CONSTRAINT uq_job_attempts_number UNIQUE (job_id, number);
ALTER TABLE ONLY public.webhooks
    ADD CONSTRAINT webhooks_pkey PRIMARY KEY (id);
CREATE INDEX ix_audit_at ON public.audit USING btree (at);
CREATE INDEX ix_deliveries_due ON public.deliveries USING btree (due_at);
CREATE INDEX ix_job_attempts_principal ON public.job_attempts USING btree (principal);
CREATE INDEX ix_job_chains_attempt ON public.job_chains USING btree (job_id, attempt, kind, id);
CREATE INDEX ix_jobs_state ON public.jobs USING btree (state);
CREATE INDEX ix_ref_moves_ref ON public.ref_moves USING btree (dataset_id, ref, id);
CREATE INDEX ix_tickets_state ON public.tickets USING btree (place, state);
CREATE INDEX ix_uploads_principal ON public.uploads USING btree (principal, at);
CREATE UNIQUE INDEX uq_jobs_at_work ON public.jobs USING btree (dataset_id) WHERE ((state)::text = ANY ((ARRAY['running'::character varying, 'cancelling'::character varying])::text[]));
ALTER TABLE ONLY public.deliveries
    ADD CONSTRAINT deliveries_webhook_id_fkey FOREIGN KEY (webhook_id) REFERENCES public.webhooks(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.job_attempts
    ADD CONSTRAINT job_attempts_job_id_fkey FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.job_chains
    ADD CONSTRAINT job_chains_job_id_fkey FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_dataset_id_fkey FOREIGN KEY (dataset_id) REFERENCES public.datasets(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.ref_intents
    ADD CONSTRAINT ref_intents_dataset_id_fkey FOREIGN KEY (dataset_id) REFERENCES public.datasets(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.ref_moves
    ADD CONSTRAINT ref_moves_dataset_id_fkey FOREIGN KEY (dataset_id) REFERENCES public.datasets(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.ref_policies
    ADD CONSTRAINT ref_policies_dataset_id_fkey FOREIGN KEY (dataset_id) REFERENCES public.datasets(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_dataset_id_fkey FOREIGN KEY (dataset_id) REFERENCES public.datasets(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.snapshots
    ADD CONSTRAINT snapshots_dataset_id_fkey FOREIGN KEY (dataset_id) REFERENCES public.datasets(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.uploads
    ADD CONSTRAINT uploads_dataset_id_fkey FOREIGN KEY (dataset_id) REFERENCES public.datasets(id) ON DELETE CASCADE;
