// Command stand starts what deploy/compose.yml says on this machine without Docker: a private PostgreSQL and a private
// Redis, every process of wafleet as often as the file has it, and a simulator of WhatsApp. It prints how to reach
// them, and stops everything at Ctrl-C.
//
//	SESSIONS=2 REAL= go run ./trials/stand
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/wafleet/wafleet/trials/cluster"
)

func main() { cluster.Main("cluster", stand) }

func stand(ctx context.Context) (err error) {
	sessions := 2
	if text := os.Getenv("SESSIONS"); text != "" {
		if sessions, err = strconv.Atoi(text); err != nil || sessions < 0 {
			return fmt.Errorf("SESSIONS=%q is not a number", text)
		}
	}
	dir, remove, err := cluster.Folder("cluster")
	if err != nil {
		return err
	}
	fmt.Printf("building; logs are in %s\n", dir)
	o := cluster.Options{Dir: dir, Real: os.Getenv("REAL") != ""}
	if o.Binary, err = cluster.Build(ctx, dir); err != nil {
		return err
	}
	if o.Compose, err = cluster.ComposeFile(ctx); err != nil {
		return err
	}
	pg, err := cluster.StartPostgres(ctx, cluster.PostgresOptions{Dir: dir})
	if err != nil {
		return err
	}
	defer pg.Close()
	redis, err := cluster.StartRedis(ctx, cluster.RedisOptions{Dir: dir, AOF: true})
	if err != nil {
		return err
	}
	defer redis.Close()
	o.Redis = redis.URL()
	if o.Database, err = pg.CreateDatabase(ctx, "wafleet"); err != nil {
		return err
	}
	c, err := cluster.Start(ctx, o)
	if err != nil {
		return err
	}
	defer c.Close()
	if !o.Real {
		if err := c.Pair(ctx, sessions); err != nil {
			return err
		}
	}
	fmt.Printf("api         %s\nadmin key   %s\nprocesses   %s\nPostgreSQL  %s\nRedis       %s\n",
		strings.Join(append([]string{c.API}, c.Others...), "  "), c.Admin, strings.Join(c.Names(), " "), o.Database, o.Redis)
	if !o.Real {
		fmt.Printf("simulator   %s/sim/\n", c.Sim)
	}
	for _, n := range c.Numbers {
		fmt.Printf("session     %s, organization %s, key %s, writes with +%s\n", n.Slug, n.Org, n.Key, n.Person)
	}
	fmt.Println("everything runs; Ctrl-C stops it")
	<-ctx.Done()
	fmt.Println("stopping")
	if err := c.Stop(); err != nil {
		return errors.Join(err, fmt.Errorf("logs are in %s", dir))
	}
	remove()
	fmt.Println("stopped")
	return nil
}
