package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Service is one of wafleet's services in a compose file.
type Service struct {
	Name     string
	Command  []string          // arguments of the binary
	Settings map[string]string // its environment, with variables filled in
	Replicas int
}

// composeFile is what counts here of a compose file.
type composeFile struct {
	Services map[string]struct {
		Image       string
		Command     []string
		Environment map[string]string
		Deploy      struct{ Replicas int }
	}
}

// variable is ${NAME} or ${NAME:?what is missing}.
var variable = regexp.MustCompile(`\$\{([A-Z_]+)(:\?[^}]*)?\}`)

// ReadCompose reads the services that run wafleet itself from a compose file, ordered by name. Variables are taken from
// vars; one that is not there is an error.
func ReadCompose(path string, vars map[string]string) ([]Service, error) {
	raw, err := os.ReadFile(path) //nolint:gosec // the caller names it
	if err != nil {
		return nil, err
	}
	var file composeFile
	if err := yaml.Unmarshal(raw, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(file.Services) == 0 {
		return nil, fmt.Errorf("%s has no services", path)
	}
	var out []Service
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(file.Services)) {
		m := file.Services[name]
		if m.Image != "wafleet" {
			continue
		}
		s := Service{Name: name, Command: m.Command, Settings: map[string]string{}, Replicas: cmp.Or(m.Deploy.Replicas, 1)}
		for key, v := range m.Environment {
			s.Settings[key] = variable.ReplaceAllStringFunc(v, func(found string) string {
				value, ok := vars[variable.FindStringSubmatch(found)[1]]
				if !ok {
					errs = append(errs, fmt.Errorf("%s of %s needs %s", key, name, found))
				}
				return value
			})
		}
		out = append(out, s)
	}
	return out, errors.Join(errs...)
}

// ComposeFile is deploy/compose.yml of this module.
func ComposeFile(ctx context.Context) (string, error) {
	root, err := moduleRoot(ctx)
	return filepath.Join(root, "deploy", "compose.yml"), err
}

// startCompose starts what the compose file says, with its settings, on one machine: what containers reach by a name is
// here on a loopback port. Processes are named after their services: "worker", "worker2". Settings of the options count
// more than the file's.
func (c *Cluster) startCompose(ctx context.Context, vars map[string]string) error {
	services, err := ReadCompose(c.o.Compose, vars)
	if err != nil {
		return err
	}
	for _, s := range services {
		if s.Name == "migrate" {
			continue // it is done
		}
		for i := range s.Replicas {
			name := s.Name
			if i > 0 {
				name += strconv.Itoa(i + 1)
			}
			env, err := c.onThisMachine(ctx, s, i)
			if err != nil {
				return err
			}
			c.mu.Lock()
			c.own[name] = env
			c.mu.Unlock()
			if err := c.begin(name, c.o.Binary, nil, s.Command...); err != nil {
				return err
			}
		}
	}
	return nil
}

// onThisMachine is the environment of one replica.
func (c *Cluster) onThisMachine(ctx context.Context, s Service, replica int) ([]string, error) {
	settings := maps.Clone(s.Settings)
	for name, want := range map[string]string{"DATABASE_URL": "@postgres:5432/", "REDIS_URL": "//redis:6379", "LISTEN": "0.0.0.0:8080", "OPS_LISTEN": "0.0.0.0:9090"} {
		if !strings.Contains(settings[name], want) {
			return nil, fmt.Errorf("%s of %s is not for a container: %q has no %s", name, s.Name, settings[name], want)
		}
		delete(settings, name) // that of the cluster counts
	}
	if s.Name == "api" && replica > 0 {
		port, err := freePort(ctx)
		if err != nil {
			return nil, err
		}
		listen := fmt.Sprintf("127.0.0.1:%d", port)
		settings["LISTEN"] = listen
		c.Others = append(c.Others, "http://"+listen)
	}
	for _, given := range c.o.Settings {
		name, _, _ := strings.Cut(given, "=")
		delete(settings, name)
	}
	for _, name := range []string{"PUBLIC_URL", "TRUSTED_PROXIES", "LOG_FORMAT"} {
		delete(settings, name) // there is no Traefik here, nor its network, and logs are read by people
	}
	var env []string
	for name, value := range settings {
		env = append(env, name+"="+value)
	}
	return env, nil
}
