// Package cluster runs wafleet as real processes for the trials: it builds the binary, starts private PostgreSQL and
// Redis servers, the simulator and the gateway's processes, pairs sessions, lets clients and people write, hears the
// webhooks, and audits at the end what became of everything.
//
// Everything is done and seen from outside: over HTTP, by signals, in the rows of the database and in the log of the
// simulator. It is plain Go without testing.T: every function returns an error, and takes its context first.
//
//	binary, err := cluster.Build(ctx, dir)
//	pg, err := cluster.StartPostgres(ctx, cluster.PostgresOptions{Dir: dir})
//	db, err := pg.CreateDatabase(ctx, "trial")
//	redis, err := cluster.StartRedis(ctx, cluster.RedisOptions{Dir: dir})
//	c, err := cluster.Start(ctx, cluster.Options{Binary: binary, Dir: dir, Database: db, Redis: redis.URL()})
//	err = c.Pair(ctx, 10)
//	err = c.Talk(ctx, "hello", 5)           // clients and people, everybody at the same time
//	err = c.Settle(ctx, time.Minute)        // until everything has arrived
//	report, err := c.Audit(ctx)
//
// Whatever is started here ends with Close, in reverse order, and by a bystander when this process is killed itself.
package cluster
