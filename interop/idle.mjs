// Holds idle sessions of a client of another make in one process, and prints what they take: node idle.mjs SIM SESSIONS SECONDS
import { makeWASocket, initAuthCreds, makeCacheableSignalKeyStore, DisconnectReason } from 'baileys'
import { WA_CERT_DETAILS } from 'baileys/lib/Defaults/index.js'
import pino from 'pino'

const [sim, count, seconds] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])]
const logger = pino({ level: 'silent' })
const base = process.memoryUsage().rss

async function post(path, body) {
  const r = await fetch(sim + path, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) })
  if (!r.ok) throw new Error(`${path}: ${r.status} ${await r.text()}`)
}

// One session with its keys in memory: resolves when it is paired and open.
function session(number) {
  const creds = initAuthCreds()
  const data = new Map()
  const keys = {
    get: async (type, ids) => Object.fromEntries(ids.flatMap((id) => (data.has(`${type}/${id}`) ? [[id, data.get(`${type}/${id}`)]] : []))),
    set: async (values) => {
      for (const [type, entries] of Object.entries(values))
        for (const [id, v] of Object.entries(entries)) v == null ? data.delete(`${type}/${id}`) : data.set(`${type}/${id}`, v)
    },
  }
  return new Promise((resolve, reject) => {
    let paired = false
    const start = () => {
      const sock = makeWASocket({
        auth: { creds, keys: makeCacheableSignalKeyStore(keys, logger) }, waWebSocketUrl: sim.replace(/^http/, 'ws') + '/ws/chat', logger, markOnlineOnConnect: false,
      })
      sock.ev.on('creds.update', (u) => Object.assign(creds, u))
      sock.ev.on('connection.update', (u) => {
        if (u.qr && !paired) {
          paired = true
          post(`/sim/phones/${number}/scan`, { qr: u.qr }).catch(reject)
        }
        if (u.connection === 'open') resolve(sock)
        if (u.connection === 'close') {
          if (u.lastDisconnect?.error?.output?.statusCode === DisconnectReason.restartRequired) start()
          else reject(u.lastDisconnect?.error)
        }
      })
    }
    start()
  })
}

const { pub } = await (await fetch(sim + '/sim/root')).json()
WA_CERT_DETAILS.PUBLIC_KEY = Buffer.from(pub, 'hex')
const sessions = []
for (let i = 1; i <= count; i++) sessions.push(await session(`5511990000${String(i).padStart(3, '0')}`))
await new Promise((r) => setTimeout(r, seconds * 1000))
console.log(JSON.stringify({ sessions: sessions.length, base, rss: process.memoryUsage().rss }))
process.exit(0)
