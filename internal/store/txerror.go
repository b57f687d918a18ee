package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"go.mau.fi/util/exerrors"
)

// TxError makes an error of dbutil's DoTxn safe to compare. A begin or a commit that fails comes as a
// DualError, which asks errors.Is the wrong way round: fleet.ErrLeaseLost counts as a cancellation,
// so every transaction whose context was cancelled would count as a lost lease. A cancellation may also
// roll the transaction back before the commit reaches it, which then says only that it is over.
func TxError(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil && errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("%w: %w", cause, sql.ErrTxDone)
	}
	if dual, ok := errors.AsType[exerrors.DualError](err); ok {
		return fmt.Errorf("%w: %w", dual.High, dual.Low)
	}
	return err
}
