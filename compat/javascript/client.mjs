// One client doing one thing: node client.mjs LIBRARY COMMAND OPTIONS, options in JSON.
//
// A command prints one document, `walk` a line for each record, `member` a line for each event.
// Keys and values are told as Latin-1 text, so that any bytes survive.

import { readFileSync } from 'node:fs'

import * as kafkajs from './kafkajs_client.mjs'
import * as platformatic from './platformatic_client.mjs'

const [library, command, text] = process.argv.slice(2)
const client = { kafkajs, platformatic }[library]
const options = JSON.parse(text)

if (command === 'produce') {
  options.records = JSON.parse(readFileSync(0, 'utf8'))
}
try {
  const result = await client[command](options)
  if (result !== undefined) {
    process.stdout.write(JSON.stringify(result) + '\n')
  }
  // Sockets and timers that a client leaves open must not keep the process alive.
  process.stdout.write('', () => process.exit(0))
} catch (error) {
  console.error(error)
  process.exit(1)
}
