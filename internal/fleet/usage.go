package fleet

// Usage is what a project sent in a day of its organization's time zone, or what an organization received.
type Usage struct {
	OrgID     OrgID
	ProjectID ProjectID // "": what came in, which is no project's
	Day       string    // "2026-11-30"

	Accepted  int64 // messages asked for
	Sent      int64 // of these: WhatsApp took them
	Delivered int64 // of these: they arrived, as far as is known
	Failed    int64 // of these: they ended without being sent
	Received  int64
}
