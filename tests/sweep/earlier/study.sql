BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('v3.2.0.a');
CREATE TABLE studies (
	study_id INTEGER NOT NULL, 
	study_name VARCHAR(512) NOT NULL, 
	PRIMARY KEY (study_id)
);
INSERT INTO "studies" VALUES(1,'cudt/reviews-ut/mine-621c7495/-/listed');
INSERT INTO "studies" VALUES(2,'cudt/reviews-ut/mine-621c7495/-/drawn');
INSERT INTO "studies" VALUES(3,'cudt/reviews-ut/mine-621c7495/-/guided');
CREATE TABLE study_directions (
	study_direction_id INTEGER NOT NULL, 
	direction VARCHAR(8) NOT NULL, 
	study_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	PRIMARY KEY (study_direction_id), 
	UNIQUE (study_id, objective), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_directions" VALUES(1,'MAXIMIZE',1,0);
INSERT INTO "study_directions" VALUES(2,'MAXIMIZE',2,0);
INSERT INTO "study_directions" VALUES(3,'MAXIMIZE',3,0);
CREATE TABLE study_system_attributes (
	study_system_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_system_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
CREATE TABLE study_user_attributes (
	study_user_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_user_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_user_attributes" VALUES(1,1,'trial 0','{"updates": 6, "best_epoch": 1, "validation_loss": 0.5, "validation_metric": 0.5, "feasible": true, "monotone": false, "seconds": 1.5, "deaths": 0, "run": "reviews-ut/listed-0"}');
INSERT INTO "study_user_attributes" VALUES(2,1,'trial 1','{"seconds": 1.5, "deaths": 0, "run": "reviews-ut/listed-1", "updates": 6, "reason": "it was too steep"}');
INSERT INTO "study_user_attributes" VALUES(3,1,'trial 2','{"seconds": 2.5, "deaths": 1}');
INSERT INTO "study_user_attributes" VALUES(4,2,'trial 0','{"updates": 6, "best_epoch": 1, "validation_loss": 0.5, "validation_metric": 0.5, "feasible": true, "monotone": false, "seconds": 1.5, "deaths": 0, "run": "reviews-ut/drawn-0"}');
INSERT INTO "study_user_attributes" VALUES(5,2,'trial 1','{"seconds": 1.5, "deaths": 0, "run": "reviews-ut/drawn-1", "updates": 6, "reason": "it was too steep"}');
INSERT INTO "study_user_attributes" VALUES(6,2,'trial 2','{"updates": 6, "best_epoch": 1, "validation_loss": 0.5, "validation_metric": 0.5, "feasible": true, "monotone": false, "seconds": 1.5, "deaths": 0, "run": "reviews-ut/drawn-2"}');
INSERT INTO "study_user_attributes" VALUES(7,2,'trial 3','{"seconds": 2.5, "deaths": 1}');
INSERT INTO "study_user_attributes" VALUES(8,3,'trial 0','{"updates": 6, "best_epoch": 1, "validation_loss": 0.5, "validation_metric": 0.5, "feasible": true, "monotone": false, "seconds": 1.5, "deaths": 0, "run": "reviews-ut/guided-0"}');
INSERT INTO "study_user_attributes" VALUES(9,3,'trial 1','{"seconds": 1.5, "deaths": 0, "run": "reviews-ut/guided-1", "updates": 6, "reason": "it was too steep"}');
CREATE TABLE trial_heartbeats (
	trial_heartbeat_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	heartbeat DATETIME NOT NULL, 
	PRIMARY KEY (trial_heartbeat_id), 
	UNIQUE (trial_id), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_intermediate_values (
	trial_intermediate_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	intermediate_value FLOAT, 
	intermediate_value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_intermediate_value_id), 
	UNIQUE (trial_id, step), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_params (
	param_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	param_name VARCHAR(512), 
	param_value FLOAT, 
	distribution_json TEXT, 
	PRIMARY KEY (param_id), 
	UNIQUE (trial_id, param_name), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_params" VALUES(1,1,'descent.alpha',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [0.1, 0.2, 0.3, 0.4]}}');
INSERT INTO "trial_params" VALUES(2,2,'descent.alpha',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [0.1, 0.2, 0.3, 0.4]}}');
INSERT INTO "trial_params" VALUES(3,3,'descent.alpha',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [0.1, 0.2, 0.3, 0.4]}}');
INSERT INTO "trial_params" VALUES(4,5,'descent.alpha',1.60816195584018939435e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 0.5, "log": false}}');
INSERT INTO "trial_params" VALUES(5,6,'descent.alpha',3.48887671695969736607e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 0.5, "log": false}}');
INSERT INTO "trial_params" VALUES(6,7,'descent.alpha',5.40747617485327625175e-02,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 0.5, "log": false}}');
INSERT INTO "trial_params" VALUES(7,8,'descent.alpha',0.321229325190843,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 0.5, "log": false}}');
INSERT INTO "trial_params" VALUES(8,9,'descent.alpha',1.43011841996003308263e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 0.5, "log": false}}');
INSERT INTO "trial_params" VALUES(9,10,'descent.alpha',4.84221382815242795683e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 0.5, "log": false}}');
CREATE TABLE trial_system_attributes (
	trial_system_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_system_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_system_attributes" VALUES(1,1,'fixed_params','{"descent.alpha": 0.1}');
INSERT INTO "trial_system_attributes" VALUES(2,2,'fixed_params','{"descent.alpha": 0.2}');
INSERT INTO "trial_system_attributes" VALUES(3,3,'fixed_params','{"descent.alpha": 0.3}');
INSERT INTO "trial_system_attributes" VALUES(4,4,'fixed_params','{"descent.alpha": 0.4}');
CREATE TABLE trial_user_attributes (
	trial_user_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_user_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_user_attributes" VALUES(1,1,'cell','0');
INSERT INTO "trial_user_attributes" VALUES(2,2,'cell','1');
INSERT INTO "trial_user_attributes" VALUES(3,3,'cell','2');
INSERT INTO "trial_user_attributes" VALUES(4,4,'cell','3');
CREATE TABLE trial_values (
	trial_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	value FLOAT, 
	value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_value_id), 
	UNIQUE (trial_id, objective), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_values" VALUES(1,1,0,8.29910347775344114928e-01,'FINITE');
INSERT INTO "trial_values" VALUES(2,5,0,8.7836475260146917865e-01,'FINITE');
INSERT INTO "trial_values" VALUES(3,7,0,7.73711589960002110721e-01,'FINITE');
INSERT INTO "trial_values" VALUES(4,9,0,0.867242589243631,'FINITE');
CREATE TABLE trials (
	trial_id INTEGER NOT NULL, 
	number INTEGER, 
	study_id INTEGER, 
	state VARCHAR(8) NOT NULL, 
	datetime_start DATETIME, 
	datetime_complete DATETIME, 
	PRIMARY KEY (trial_id), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "trials" VALUES(1,0,1,'COMPLETE','2026-11-17 19:08:51.558395','2026-11-17 19:08:51.669427');
INSERT INTO "trials" VALUES(2,1,1,'FAIL','2026-11-17 19:08:51.749833','2026-11-17 19:08:51.869035');
INSERT INTO "trials" VALUES(3,2,1,'RUNNING','2026-11-17 19:08:51.943547',NULL);
INSERT INTO "trials" VALUES(4,3,1,'WAITING',NULL,NULL);
INSERT INTO "trials" VALUES(5,0,2,'COMPLETE','2026-11-17 19:08:52.061364','2026-11-17 19:08:52.101419');
INSERT INTO "trials" VALUES(6,1,2,'FAIL','2026-11-17 19:08:52.140616','2026-11-17 19:08:52.176949');
INSERT INTO "trials" VALUES(7,2,2,'COMPLETE','2026-11-17 19:08:52.217435','2026-11-17 19:08:52.249924');
INSERT INTO "trials" VALUES(8,3,2,'RUNNING','2026-11-17 19:08:52.281988',NULL);
INSERT INTO "trials" VALUES(9,0,3,'COMPLETE','2026-11-17 19:08:52.347133','2026-11-17 19:08:52.371972');
INSERT INTO "trials" VALUES(10,1,3,'FAIL','2026-11-17 19:08:52.385642','2026-11-17 19:08:52.417203');
CREATE TABLE version_info (
	version_info_id INTEGER NOT NULL, 
	schema_version INTEGER, 
	library_version VARCHAR(256), 
	PRIMARY KEY (version_info_id), 
	CHECK (version_info_id=1)
);
INSERT INTO "version_info" VALUES(1,12,'5.0.0');
CREATE UNIQUE INDEX ix_studies_study_name ON studies (study_name);
CREATE INDEX ix_trials_study_id ON trials (study_id);
COMMIT;
