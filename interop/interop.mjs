// A WhatsApp client of another make pairs with the simulator and exchanges messages with a wafleet
// session in both directions: proof that simulator and gateway speak the protocol, not only to
// themselves. scripts/interop starts the simulator and the gateway and gives their addresses:
//
//   SIM     http://127.0.0.1:PORT of `wafleet sim`
//   API     http://127.0.0.1:PORT of `wafleet up --simulator …`
//   ADMIN   an admin key
import { makeWASocket, initAuthCreds, DisconnectReason } from 'baileys'
import { WA_CERT_DETAILS } from 'baileys/lib/Defaults/index.js'
import pino from 'pino'

const { SIM, API, ADMIN } = process.env
const ours = '5511900000001' // the wafleet session's number
const theirs = '5511900000002' // the number of the other client
const limit = 30_000

const started = Date.now()
const step = (text) => console.log(`${((Date.now() - started) / 1000).toFixed(1).padStart(6)} s  ${text}`)

async function call(method, url, { key, body } = {}) {
  const headers = { accept: 'application/json' }
  if (body !== undefined) headers['content-type'] = 'application/json'
  if (key) headers.authorization = `Bearer ${key}`
  const r = await fetch(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) })
  const text = await r.text()
  if (!r.ok) throw new Error(`${method} ${url}: ${r.status} ${text}`)
  return text ? JSON.parse(text) : {}
}
const sim = (method, path, body) => call(method, SIM + path, { body })
const admin = (method, path, body) => call(method, API + path, { key: ADMIN, body })

async function until(what, check) {
  for (const end = Date.now() + limit; Date.now() < end; await new Promise((r) => setTimeout(r, 100))) {
    const found = await check()
    if (found) return found
  }
  throw new Error(`after ${limit / 1000} s: no ${what}`)
}

// The other client: keys in memory, everything it sees in a list.
function otherClient(root) {
  WA_CERT_DETAILS.PUBLIC_KEY = Buffer.from(root, 'hex')
  const seen = { open: 0, texts: [], receipts: [] }
  const creds = initAuthCreds()
  const data = new Map()
  const keys = {
    get: async (type, ids) => Object.fromEntries(ids.flatMap((id) => (data.has(`${type}/${id}`) ? [[id, data.get(`${type}/${id}`)]] : []))),
    set: async (values) => {
      for (const [type, entries] of Object.entries(values))
        for (const [id, v] of Object.entries(entries)) v == null ? data.delete(`${type}/${id}`) : data.set(`${type}/${id}`, v)
    },
  }
  const client = { seen }
  const start = () => {
    const sock = makeWASocket({
      auth: { creds, keys }, waWebSocketUrl: SIM.replace(/^http/, 'ws') + '/ws/chat',
      logger: pino({ level: process.env.LOG_LEVEL || 'silent' }, pino.destination(2)), markOnlineOnConnect: false,
    })
    client.sock = sock
    sock.ev.on('creds.update', (u) => Object.assign(creds, u))
    sock.ev.on('connection.update', (u) => {
      if (u.qr) seen.qr = u.qr
      if (u.connection === 'open') seen.open++
      if (u.connection === 'close' && u.lastDisconnect?.error?.output?.statusCode === DisconnectReason.restartRequired) start()
    })
    sock.ev.on('messages.upsert', ({ messages }) => {
      for (const m of messages) {
        const text = m.message?.conversation || m.message?.extendedTextMessage?.text
        if (text && !m.key.fromMe) seen.texts.push({ id: m.key.id, text, key: m.key })
      }
    })
    // Receipts as decoded from the wire. The wafleet session is a linked device, so its address has a
    // device number ("user:1@…"); the phone's has none. "inactive" is delivered while not online.
    sock.ws.on('CB:receipt', ({ attrs }) => {
      if (attrs.from.includes(':') && (!attrs.type || attrs.type === 'inactive')) seen.receipts.push(attrs.id)
    })
  }
  client.start = start
  return client
}

async function main() {
  const { pub } = await sim('GET', '/sim/root')
  for (const [pn, name] of [[ours, 'Our shop'], [theirs, 'Other client']]) await sim('POST', '/sim/phones', { pn, pushName: name })

  await admin('POST', '/api/admin/organizations', { orgId: 'interop', label: 'Interop' })
  const { sessionId } = await admin('POST', '/api/admin/sessions', { orgId: 'interop' })
  const { key } = await admin('POST', '/api/admin/keys', { orgId: 'interop', label: 'interop' })
  await admin('PATCH', `/api/admin/sessions/${sessionId}`, { budget: { perMinute: 10_000, perHour: 10_000, perDay: 10_000 } }) // it is new, and may send a tenth
  await admin('POST', `/api/admin/sessions/${sessionId}/pair`, { method: 'qr' })
  const session = () => admin('GET', `/api/admin/sessions/${sessionId}`)
  await until('QR code', async () => (await session()).pairing)
  await until('scan', async () => {
    const { qr } = await admin('GET', `/api/admin/sessions/${sessionId}/qr`)
    await sim('POST', `/sim/phones/${ours}/scan`, { qr })
    return true
  })
  await until('connected session', async () => (await session()).connected)
  step(`wafleet session ${sessionId} paired and connected`)

  const other = otherClient(pub)
  other.start()
  const qr = await until('QR of the other client', () => other.seen.qr)
  await sim('POST', `/sim/phones/${theirs}/scan`, { qr })
  await until('open of the other client', () => other.seen.open)
  step('the other client paired by QR and is connected')

  // wafleet → other client, with its receipts
  const sent = await call('POST', `${API}/api/v1/messages`, { key, body: { to: `+${theirs}`, text: 'hello from wafleet' } })
  const got = await until('message at the other client', () => other.seen.texts.find((m) => m.text === 'hello from wafleet'))
  const status = async () => (await call('GET', `${API}/api/v1/messages/${sent.messageId}`, { key })).status
  await until('delivery receipt', async () => ['delivered', 'read'].includes(await status()))
  await other.sock.readMessages([got.key])
  await until('read receipt', async () => (await status()) === 'read')
  step('wafleet → other client: decrypted, delivered, read')

  // other client → wafleet, with the delivery receipt
  const back = await other.sock.sendMessage(`${ours}@s.whatsapp.net`, { text: 'hello from another make' })
  await until('message in wafleet', async () => {
    const log = await sim('GET', `/sim/log?id=${back.key.id}&kind=receipt&session=${ours}`)
    return (log.entries ?? log.items ?? log).some((e) => e.dir === 'in' && e.device > 0)
  })
  await until('delivery receipt of the wafleet session', () => other.seen.receipts.includes(back.key.id))
  step('other client → wafleet: stored, acknowledged, delivered')

  // several more each way, so that the sessions' ratchets turn
  for (let i = 0; i < 5; i++) {
    const { messageId: id } = await call('POST', `${API}/api/v1/messages`, { key, body: { to: theirs, text: `more ${i}` } })
    await until(`more ${i}`, () => other.seen.texts.find((m) => m.text === `more ${i}`))
    const r = await other.sock.sendMessage(`${ours}@s.whatsapp.net`, { text: `echo ${i}` })
    await until(`receipt of echo ${i}`, () => other.seen.receipts.includes(r.key.id))
    await until(`delivery of more ${i}`, async () => ['delivered', 'read'].includes((await call('GET', `${API}/api/v1/messages/${id}`, { key })).status))
  }
  step('five more each way')
  if (other.seen.texts.length !== 6) throw new Error(`the other client got ${other.seen.texts.length} texts, want 6`)
}

main().then(
  () => { step('interop passed'); process.exit(0) },
  (err) => { console.error(`interop failed: ${err.stack || err}`); process.exit(1) },
)
