// A WhatsApp client of another make, driven over standard input and output: one JSON object a line.
//
//   in   {"cmd":"send","to":"5511900000001","text":"…"}   {"cmd":"quit"}
//   out  {"event":"qr","qr":"…"}  {"event":"open"}  {"event":"message","from":"…","id":"…","text":"…"}
//        {"event":"sent","id":"…"}  {"event":"receipt","id":"…","status":3}  {"event":"error","error":"…"}
//
// Environment: SIM_URL ws://127.0.0.1:PORT/ws/chat, SIM_ROOT the simulator's root key in hex.
import readline from 'node:readline'
import { makeWASocket, initAuthCreds, DisconnectReason } from 'baileys'
import { WA_CERT_DETAILS } from 'baileys/lib/Defaults/index.js'
import pino from 'pino'

WA_CERT_DETAILS.PUBLIC_KEY = Buffer.from(process.env.SIM_ROOT, 'hex')

const logger = pino({ level: process.env.LOG_LEVEL || 'silent' }, pino.destination(2))
const say = (o) => process.stdout.write(JSON.stringify(o) + '\n')

// Keys in memory: the test needs them no longer than the process lives.
const creds = initAuthCreds()
const data = {}
const keys = {
  get: async (type, ids) => Object.fromEntries(ids.map((id) => [id, data[`${type}/${id}`]]).filter(([, v]) => v !== undefined)),
  set: async (values) => {
    for (const [type, entries] of Object.entries(values)) {
      for (const [id, value] of Object.entries(entries)) {
        if (value === null || value === undefined) delete data[`${type}/${id}`]
        else data[`${type}/${id}`] = value
      }
    }
  },
}

let sock
function start() {
  sock = makeWASocket({ auth: { creds, keys }, waWebSocketUrl: process.env.SIM_URL, logger, markOnlineOnConnect: false })
  sock.ev.on('creds.update', (u) => Object.assign(creds, u))
  sock.ev.on('connection.update', (u) => {
    if (u.qr) say({ event: 'qr', qr: u.qr })
    if (u.connection === 'open') say({ event: 'open' })
    if (u.connection === 'close') {
      const code = u.lastDisconnect?.error?.output?.statusCode
      if (code === DisconnectReason.restartRequired) start()
      else say({ event: 'closed', code })
    }
  })
  sock.ev.on('messages.upsert', ({ messages }) => {
    for (const m of messages) {
      if (m.key.fromMe) continue
      const text = m.message?.conversation || m.message?.extendedTextMessage?.text
      if (text) say({ event: 'message', id: m.key.id, from: m.key.remoteJidAlt || m.key.remoteJid, text })
    }
  })
  sock.ev.on('messages.update', (updates) => {
    for (const u of updates) if (u.update?.status) say({ event: 'receipt', id: u.key.id, status: u.update.status })
  })
}

readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  const c = JSON.parse(line)
  try {
    if (c.cmd === 'send') {
      const r = await sock.sendMessage(`${c.to}@s.whatsapp.net`, { text: c.text })
      say({ event: 'sent', id: r.key.id })
    } else if (c.cmd === 'read') {
      await sock.readMessages([{ remoteJid: c.from, id: c.id }])
    } else if (c.cmd === 'quit') process.exit(0)
  } catch (e) {
    say({ event: 'error', error: String(e?.stack || e) })
  }
}).on('close', () => process.exit(0))

start()
