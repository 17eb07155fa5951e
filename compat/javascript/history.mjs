// What a member tells: a line of JSON for everything that happens to it.

export class History {
  owned = new Map() // "topic:partition" to [topic, partition]
  turn = 0

  tell(event, fields = {}) {
    // The machine's monotonic clock, the same one in every process.
    const at = Number(process.hrtime.bigint()) / 1e9
    process.stdout.write(JSON.stringify({ event, at, ...fields }) + '\n')
  }

  owns(topic, partition) {
    return this.owned.has(`${topic}:${partition}`)
  }

  // From now on it owns these, [topic, partition] each, and nothing else.
  assign(partitions, member) {
    const wanted = new Map(partitions.map(([topic, number]) => [`${topic}:${number}`, [topic, number]]))
    const gone = [...this.owned].filter(([name]) => !wanted.has(name)).map(([, pair]) => pair)
    const come = [...wanted].filter(([name]) => !this.owned.has(name)).map(([, pair]) => pair)
    this.owned = wanted
    if (gone.length) {
      this.tell('revoked', { partitions: gone, member })
    }
    if (come.length) {
      this.tell('assigned', { partitions: come, member })
    }
  }

  // Records of one partition in its hands; the number is for the commit that follows.
  processed(topic, partition, offsets) {
    const turn = ++this.turn
    this.tell('processed', { turn, topic, partition, offsets })
    return turn
  }

  committed(turns, offsets) {
    this.tell('committed', { turns, offsets })
  }

  refused(turns, offsets, error) {
    this.tell('refused', { turns, offsets, error: nameOf(error) })
  }
}

// Kafka's name of an error, however the client wraps it.
export function nameOf(error) {
  for (let one = error; one; one = one.cause ?? one.errors?.[0]) {
    const name = one.apiId ?? one.type
    if (name) {
      return name
    }
  }
  return String(error?.message ?? error)
}

// Resolves when the process is asked to end.
export function asked() {
  return new Promise(resolve => process.on('SIGTERM', resolve))
}

export const pause = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds))

// The result of `ask` once it satisfies `enough`, or the last one after ten seconds.
export async function until(ask, enough) {
  const deadline = Date.now() + 10_000
  let result = await ask()
  while (!enough(result) && Date.now() < deadline) {
    await pause(100)
    result = await ask()
  }
  return result
}

export async function errorOf(operation) {
  try {
    await operation
  } catch (error) {
    return nameOf(error)
  }
  return null
}

export const bytes = text => (text === null ? null : Buffer.from(text, 'latin1'))
export const latin = data => (data === null || data === undefined ? null : data.toString('latin1'))

// One record as `walk` prints it.
export function tellRecord(topic, partition, offset, timestamp, key, value, headers) {
  const fields = { partition, offset: Number(offset), timestamp: Number(timestamp) }
  const line = { ...fields, key: latin(key), value: latin(value), headers }
  process.stdout.write(JSON.stringify(line) + '\n')
}
