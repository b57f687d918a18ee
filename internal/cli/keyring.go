package cli

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/wafleet/wafleet/internal/config"
	"github.com/wafleet/wafleet/internal/seal"
)

// keys reads DATA_KEY and LOOKUP_KEY and their predecessors.
func keys(k *config.Keys) (*seal.Ring, *seal.Lookup, error) {
	data, dataBefore, dataErrs := parseKeys("DATA_KEY", k.DataKey, k.DataKeyPrevious)
	look, lookBefore, lookErrs := parseKeys("LOOKUP_KEY", k.LookupKey, k.LookupKeyPrevious)
	if errs := append(dataErrs, lookErrs...); len(errs) > 0 {
		return nil, nil, &usageError{errors.Join(errs...)}
	}
	ring, err := seal.NewRing(data, dataBefore...)
	if err != nil {
		return nil, nil, err
	}
	return ring, seal.NewLookup(look, lookBefore...), nil
}

// checkKeys looks at the keys that are given, before any is made in a folder.
func checkKeys(k config.Keys) error {
	placeholder := config.Secret(seal.NewKey().Encode())
	k.DataKey = cmp.Or(k.DataKey, placeholder)
	k.LookupKey = cmp.Or(k.LookupKey, placeholder)
	_, _, err := keys(&k)
	return err
}

// parseKeys reads one key setting and its list of predecessors, and returns all that is wrong.
func parseKeys(setting string, now, before config.Secret) (current seal.Key, previous []seal.Key, errs []error) {
	current, err := seal.ParseKey(now.Reveal())
	if err != nil {
		errs = append(errs, &config.Error{Setting: setting, Problem: fmt.Sprintf("can't be used: %v (openssl rand -hex 32 makes one)", err)})
	}
	if before != "" {
		for part := range strings.SplitSeq(before.Reveal(), ",") {
			k, err := seal.ParseKey(part)
			if err != nil {
				errs = append(errs, &config.Error{Setting: setting + "_PREVIOUS", Problem: fmt.Sprintf("can't be used: %v", err)})
				break
			}
			previous = append(previous, k)
		}
	}
	return current, previous, errs
}
