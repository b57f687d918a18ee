package store

import (
	"errors"
	"fmt"

	"go.mau.fi/util/exerrors"
)

// TxError makes an error of dbutil's DoTxn safe to compare. A begin or a commit that fails comes as a
// DualError, which asks errors.Is the wrong way round: fleet.ErrLeaseLost counts as a cancellation,
// so every transaction whose context was cancelled would count as a lost lease.
func TxError(err error) error {
	if dual, ok := errors.AsType[exerrors.DualError](err); ok {
		return fmt.Errorf("%w: %w", dual.High, dual.Low)
	}
	return err
}
