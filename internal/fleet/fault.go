package fleet

// NumberFault reports whether WhatsApp refused a message because of the number that sent it. Only that
// counts against the number's health: refusals because of the recipient (403), the message (479), a
// group's members (421), and those that only concern strangers (463, 475) say nothing about it, and
// neither does WhatsApp's own trouble (5xx).
func NumberFault(code int) bool {
	switch code {
	case 0, 403, 421, 463, 475, 479:
		return false
	default:
		return code < 500
	}
}
