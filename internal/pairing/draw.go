package pairing

import "strings"

// view is what a visitor sees.
type view interface {
	page() markup // all of it
	live() markup // the part that follows what happens
}

const (
	check   markup = `<svg class="mark good" viewBox="0 0 48 48" aria-hidden="true"><circle cx="24" cy="24" r="23"/><path d="M14 25l7 7 14-15"/></svg>`
	pause   markup = `<svg class="mark calm" viewBox="0 0 48 48" aria-hidden="true"><circle cx="24" cy="24" r="23"/><path d="M24 13v14M24 34v.5"/></svg>`
	spinner markup = `<span class="spinner" aria-hidden="true"></span>`
)

// around puts a page's frame around what it shows.
func (f *frame) around(main markup) markup {
	title, org := markup("WhatsApp"), markup("WhatsApp")
	if f.Title != "" {
		title, org = fill("% · WhatsApp", f.Title), fill("%", f.Title)
	}
	var languages markup
	for _, l := range f.Locales {
		languages += fill(`
    <a href="%?lang=%" lang="%" hreflang="%"% title="%"><span class="short" aria-hidden="true">%</span><span class="long">%</span></a>`,
			f.Here, l.Lang, l.Lang, l.Lang, when(l.Lang == f.Lang, ` aria-current="true"`), l.Name, l.Lang, l.Name)
	}
	return fill(`<!doctype html>
<html lang="%">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex, nofollow">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<meta name="htmx-config" content='{"allowEval":false,"includeIndicatorStyles":false,"selfRequestsOnly":true,"historyEnabled":false,"historyCacheSize":0}'>
<title>%</title>
<link rel="icon" href="%/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="%/pair.css">
%<script src="%/htmx-2.0.11.min.js" defer></script>
<script src="%/htmx-ext-sse-2.2.4.min.js" defer></script>
<script src="%/pair.js" defer></script>
</head>
<body>
<div class="sheet">
<header class="top">
  <p class="org">%</p>
  <nav class="langs" aria-label="%">%
  </nav>
</header>
<main>
%
</main>
<footer class="bottom">
  <p class="offline" id="offline" role="status" hidden>%</p>
  <p>%</p>
</footer>
</div>
</body>
</html>
`,
		f.Lang, title, f.Assets, f.Assets, when(f.Reload > 0, fill("<noscript><meta http-equiv=\"refresh\" content=\"%\"></noscript>\n", f.Reload)),
		f.Assets, f.Assets, f.Assets, org, f.T("language.choose"), languages, main, f.T("offline"), f.T("foot"))
}

func (v *failView) page() markup { return v.around(fill("<section>\n%\n</section>", v.live())) }

func (v *failView) live() markup {
	return fill(`%
<h1 class="center">%</h1>
<p class="lead center">%</p>`, pause, v.T("fail."+v.Why), v.T("fail."+v.Why+".do"))
}

func (v *linkView) page() markup {
	return v.around(fill(`<section id="live" hx-ext="sse" sse-connect="%/events" sse-swap="live" sse-close="done">
%
</section>`, v.Home, v.live()))
}

func (v *linkView) live() markup {
	numbers := fill(`<p class="empty">%</p>`, v.T("link.empty"))
	if len(v.Rows) > 0 {
		numbers = `<ul class="numbers">`
		for i := range v.Rows {
			numbers += v.row(&v.Rows[i])
		}
		numbers += "\n</ul>"
	}
	more := fill(`<p class="full">%</p>`, v.T("link.full"))
	if !v.Full {
		more = fill(`<form method="post" action="%/numbers">
  <button class="button main" type="submit">%</button>
</form>`, v.Home, v.T("link.add"))
	}
	return fill(`<h1>%</h1>
<p class="lead">%</p>
%%
%
<p class="count">%</p>`, v.T("link.title"), v.T("link.lead", v.Title),
		when(v.Notice != "", fill("<p class=\"notice\" role=\"alert\">%</p>\n", v.T("notice."+v.Notice))), numbers, more, v.T("link.used", v.Used, v.Max))
}

// row is one number in the list of a link.
func (v *linkView) row(r *row) markup {
	who := fill("%", v.T("new_number"))
	if r.Last4 != "" {
		who = fill(`<span aria-hidden="true">••••&#8239;</span><span class="hidden">% </span>%`, v.T("ending"), r.Last4)
	}
	button := ""
	switch {
	case r.Open:
		button = v.T("link.open")
	case r.Relink:
		button = v.T("link.relink")
	}
	return fill(`
  <li class="number">
    <span class="dot %" aria-hidden="true"></span>
    <span class="who">
      <span class="tail">%</span>
      <span class="id">%</span>
    </span>
    <span class="state">%</span>%
  </li>`, r.State, who, r.ID, v.T("state."+r.State),
		when(button != "", fill("\n    <a class=\"small button\" href=\"%/numbers/%\">%</a>", v.Home, r.ID, button)))
}

// here is the path of the number's page.
func (v *numberView) here() markup { return fill("%/numbers/%", v.Home, v.ID) }

func (v *numberView) page() markup {
	return v.around(fill(`<p class="back"><a href="%">%</a></p>
<section id="live" class="link-number" hx-ext="sse" sse-connect="%/events" sse-swap="live" sse-close="done">
%
</section>`, v.Home, v.T("back"), v.here(), v.live()))
}

func (v *numberView) live() markup {
	switch v.Phase {
	case phaseStarting:
		return fill(`%
%`, v.waiting("starting"), v.otherWays())
	case phaseScan:
		return v.scan()
	case phaseType:
		return v.typed()
	case phaseLinking:
		return v.waiting("linking")
	case phaseDone:
		lead := v.T("done.lead.bare")
		if v.Last4 != "" {
			lead = v.T("done.lead", v.Last4)
		}
		return fill(`%
<div class="actions">
  <a class="button main" href="%">%</a>%
</div>`, v.ended(check, "done.title", lead), v.Home, v.T("done.back"),
			when(v.Left, fill("\n  <form method=\"post\" action=\"%/numbers\"><button class=\"button\" type=\"submit\">%</button></form>", v.Home, v.T("done.another"))))
	case phaseUnlinked:
		lead := v.T("unlinked.lead", v.Last4)
		if v.Why != "" {
			lead = v.T("why." + v.Why)
		}
		return v.ended(pause, "unlinked.title", lead) + v.onceMore("unlinked.qr")
	case phaseGone:
		return fill(`%
<div class="actions"><a class="button main" href="%">%</a></div>`, v.ended(pause, "gone.title", v.T("gone.lead")), v.Home, v.T("done.back"))
	case phaseOver:
	}
	return v.ended(pause, "over."+v.Why, v.T("why."+v.Why)) + v.onceMore("over.again")
}

// waiting is shown while there is nothing to do.
func (v *numberView) waiting(what string) markup {
	return fill(`<h1 aria-live="polite">%</h1>
<div class="qr waiting">%</div>
<p class="lead center">%</p>`, v.T(what+".title"), spinner, v.T(what+".lead"))
}

func (v *numberView) ended(mark markup, title, lead string) markup {
	return fill(`%
<h1 class="center" aria-live="polite">%</h1>
<p class="lead center">%</p>`, mark, v.T(title), lead)
}

// onceMore are the ways to try again.
func (v *numberView) onceMore(qr string) markup {
	return fill(`
<div class="actions">
  <form method="post" action="%/qr"><button class="button main" type="submit">%</button></form>
  <a class="button" href="%/code">%</a>
</div>`, v.here(), v.T(qr), v.here(), v.T("ways.code"))
}

// heading is above what is to be scanned or typed.
func (v *numberView) heading(title string) markup {
	return fill("<h1 aria-live=\"polite\">%</h1>\n%", v.T(title), when(v.Last4 != "", fill("<p class=\"lead\">%</p>\n", v.T("relink.lead", v.Last4))))
}

// timer counts down by script.
func (v *numberView) timer(before, after string) markup {
	return fill(`<p class="timer" data-seconds="%"><span>%</span> <b>%</b> <span>%</span></p>`, v.Seconds(), v.T(before), v.Seconds(), v.T(after))
}

func (v *numberView) steps(one, two, three string) markup {
	return fill(`<ol class="steps">
  <li>%</li>
  <li>%</li>
  <li>%</li>
</ol>`, v.T(one), v.T(two), v.T(three))
}

func (v *numberView) scan() markup {
	return fill(`%<div class="pair">
  <div class="shown">
    <div class="qr" id="qr" role="img" aria-label="%" data-over-after="%">%</div>
    %
  </div>
  %
</div>
%`, v.heading("scan.title"), v.T("scan.alt"), v.Seconds(), v.QR, v.timer("scan.timer.before", "scan.timer.after"),
		v.steps("scan.step1", "scan.step2", "scan.step3"), v.otherWays())
}

func (v *numberView) typed() markup {
	var shown markup
	for i, half := range v.Code {
		shown += when(i > 0, `<span class="dash" aria-hidden="true">–</span>`) + fill("<span>%</span>", half)
	}
	return fill(`%<p class="code" id="code" aria-label="%" data-over-after="%">%</p>
%
%
%`, v.heading("type.title"), strings.Join(v.Code, " "), v.Seconds(), shown, v.timer("type.timer.before", "type.timer.after"),
		v.steps("type.step1", "type.step2", "type.step3"), v.otherWays())
}

// otherWays leads to the other method, and back.
func (v *numberView) otherWays() markup {
	other := fill(`<a class="button phone-first" href="%/code">%</a>`, v.here(), v.T("ways.code"))
	if v.Phase == phaseType {
		other = fill(`<form method="post" action="%/qr"><button class="plain" type="submit">%</button></form>`, v.here(), v.T("ways.qr"))
	}
	return fill(`<div class="ways">
  %%
</div>`, other,
		when(!v.Relink, fill("\n  <form method=\"post\" action=\"%/cancel\"><button class=\"plain\" type=\"submit\">%</button></form>", v.here(), v.T("ways.cancel"))))
}

func (v *codeView) live() markup { return "" }

func (v *codeView) page() markup {
	here := fill("%/numbers/%", v.Home, v.ID)
	lead := v.T("code.lead")
	if v.Last4 != "" {
		lead = v.T("code.lead.same", v.Last4)
	}
	var wrong, why markup
	if v.Problem != "" {
		wrong = ` aria-invalid="true" aria-describedby="problem"`
		why = fill("\n  <p class=\"notice\" id=\"problem\" role=\"alert\">%</p>", v.T("problem."+v.Problem))
	}
	return v.around(fill(`<p class="back"><a href="%">%</a></p>
<h1>%</h1>
<p class="lead">%</p>
<form class="field" method="post" action="%/code">
  <label for="phone">%</label>
  <input id="phone" name="phone" type="tel" inputmode="tel" autocomplete="tel" placeholder="+55 11 9 0000 0001" required maxlength="32"%>%
  <button class="button main" type="submit">%</button>
</form>
<p class="hint">%</p>`, here, v.T("back.qr"), v.T("code.title"), lead, here, v.T("code.label"), wrong, why, v.T("code.ask"), v.T("code.hint")))
}
