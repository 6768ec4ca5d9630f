// A Kafka client as tests/support/client_programs.py describes it, by KafkaJS.
import { readFileSync } from 'node:fs'
import kafkajs from 'kafkajs'

const given = Object.fromEntries(process.argv.slice(2).map((pair) => {
  const at = pair.indexOf('=')
  return [pair.slice(0, at), pair.slice(at + 1)]
}))

function login () {
  const { user: username, password } = given
  switch (given.mechanism) {
    case 'PLAIN': return { mechanism: 'plain', username, password }
    case 'SCRAM-SHA-256': return { mechanism: 'scram-sha-256', username, password }
    case 'SCRAM-SHA-512': return { mechanism: 'scram-sha-512', username, password }
    case 'OAUTHBEARER': return { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: readFileSync(given.token, 'utf8') }) }
  }
}

const ca = readFileSync(given.ca)
const ssl = { ca: [ca] }
if (given.certificate) {
  ssl.cert = readFileSync(given.certificate)
  ssl.key = readFileSync(given.key)
}
const kafka = new kafkajs.Kafka({
  brokers: [given.bootstrap],
  ssl,
  sasl: login(),
  reauthenticationThreshold: 1000,
  retry: { retries: 0 },
  logLevel: kafkajs.logLevel.NOTHING,
})

async function write (producer, value) {
  await producer.send({ topic: given.topic, acks: -1, messages: [{ value }] })
}

async function copy () {
  const count = Number(given.count)
  const producer = kafka.producer()
  await producer.connect()
  for (let number = 0; number < count; number++) await write(producer, `value ${number}`)
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId: given.group, retry: { retries: 0 } })
  await consumer.connect()
  await consumer.subscribe({ topics: [given.topic], fromBeginning: true })
  let read = 0
  await new Promise((resolve, reject) => {
    consumer.on('consumer.crash', ({ payload }) => reject(payload.error))
    const eachMessage = async ({ message }) => {
      console.log(`read ${message.value}`)
      if (++read === count) resolve()
    }
    consumer.run({ eachMessage }).catch(reject)
  })
  await consumer.disconnect()
}

async function keepWriting () {
  const producer = kafka.producer()
  await producer.connect()
  const end = Date.now() + Number(given.seconds) * 1000
  let count = 0
  while (Date.now() < end) {
    await write(producer, `value ${count++}`)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  await producer.disconnect()
  console.log(`wrote ${count}`)
}

try {
  await (given.action === 'copy' ? copy() : keepWriting())
  process.exit(0)
} catch (error) {
  for (let one = error; one; one = one.cause) console.log(`error ${one.name} ${one.type ?? ''} ${one.message}`)
  process.exit(1)
}
