package outbound

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
)

func TestRequestsOfAllOrganizationsTogetherAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ledger.NewMemory(ledger.Options{})
		defer l.Close()
		o := New(Options{Ledger: l, Requests: 60})
		quick := fleet.Principal{OrgID: "org-a", ProjectID: "prj_a", Requests: 50}
		admitted := func(p fleet.Principal) (n int, last Admitted) {
			for {
				a, err := o.Admit(t.Context(), p)
				if err != nil {
					t.Fatal(err)
				}
				if a.Wait > 0 || n > 100 {
					return n, a
				}
				n++
			}
		}
		if n, a := admitted(quick); n != 50 || a.Limit != 50 {
			t.Errorf("%d requests of one project under %d, want its 50", n, a.Limit)
		}
		n, a := admitted(fleet.Principal{OrgID: "org-b", ProjectID: "prj_b"})
		if n != 10 || a.Limit != 0 || a.Wait != time.Second {
			t.Errorf("%d requests of another one under %d, then a wait of %s; want the 10 that were left of all, no limit told, and a second", n, a.Limit, a.Wait)
		}
		time.Sleep(a.Wait)
		if n, _ := admitted(fleet.Principal{OrgID: "org-b", ProjectID: "prj_b"}); n != 1 {
			t.Errorf("%d requests after waiting as told, want 1", n)
		}
	})
}
