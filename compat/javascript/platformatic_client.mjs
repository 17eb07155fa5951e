// @platformatic/kafka: current protocol versions, KIP-848, all codecs that Node itself has.

import {
  Admin,
  ConfigResourceTypes,
  Consumer,
  FetchIsolationLevels,
  IncrementalAlterConfigOperationTypes,
  ListOffsetTimestamps,
  Producer
} from '@platformatic/kafka'

import { History, asked, bytes, errorOf, latin, nameOf, pause, tellRecord, until } from './history.mjs'

const COMMIT_PERIOD_MS = 50

const base = servers => ({
  clientId: 'compat-platformatic',
  bootstrapBrokers: [servers],
  retries: 60,
  retryDelay: 250
})

const isolation = committed => FetchIsolationLevels[committed ? 'READ_COMMITTED' : 'READ_UNCOMMITTED']

export async function produce({ servers, topic, codec, idempotent, records }) {
  const producer = new Producer({ ...base(servers), idempotent, acks: -1, compression: codec })
  const messages = records.map(record => ({
    topic,
    partition: record.partition,
    key: bytes(record.key) ?? undefined,
    value: bytes(record.value) ?? undefined,
    timestamp: BigInt(record.timestamp),
    headers: new Map(record.headers.map(([name, value]) => [bytes(name), bytes(value)]))
  }))
  const offsets = {}
  for (let first = 0; first < messages.length; first += 500) {
    const answer = await producer.send({ messages: messages.slice(first, first + 500) })
    for (const { partition, offset } of answer.offsets) {
      offsets[partition] ??= Number(offset)
    }
  }
  await producer.close()
  return { offsets }
}

export async function walk({ servers, topic, count, committed, fetchBytes }) {
  const groupId = `walk-${process.pid}-${Date.now()}`
  const limits = fetchBytes ? { maxBytes: fetchBytes, maxBytesPerPartition: fetchBytes } : {}
  const consumer = new Consumer({ ...base(servers), groupId })
  const stream = await consumer.consume({
    topics: [topic],
    mode: 'earliest',
    autocommit: false,
    maxWaitTime: 200,
    isolationLevel: isolation(committed),
    ...limits
  })
  let seen = 0
  for await (const message of stream) {
    const headers = [...message.headers].map(([name, value]) => [latin(name), latin(value)])
    const { partition, offset, timestamp, key, value } = message
    tellRecord(topic, partition, offset, timestamp, key, value, headers)
    if (++seen === count) {
      break
    }
  }
  await consumer.close(true)
}

// The client tells of no change of an assignment in KIP-848, so its property is watched.
function watch(consumer, changed) {
  let current = consumer.assignments
  Object.defineProperty(consumer, 'assignments', {
    get: () => current,
    set: value => {
      current = value
      changed(value ?? [])
    }
  })
}

export async function member({ servers, group, topic, sessionMs, protocol }) {
  const history = new History()
  const times =
    protocol === 'consumer'
      ? { groupProtocol: 'consumer' }
      : { sessionTimeout: sessionMs, rebalanceTimeout: 20_000, heartbeatInterval: Math.floor(sessionMs / 6) }
  const consumer = new Consumer({ ...base(servers), groupId: group, ...times })
  const waiting = new Map() // "topic:partition" to what is processed and not committed
  const reached = new Map() // "topic:partition" to the last offset processed
  const held = [] // what came between two assignments
  let isBetween = true
  let ending = false
  const processOne = ({ topic, partition, offset }) => {
    const name = `${topic}:${partition}`
    // The stream goes back to the committed offset when the group has changed, and it may have
    // records of a partition in store that is gone.
    if (!history.owns(topic, partition) || offset <= (reached.get(name) ?? -1n)) {
      return
    }
    reached.set(name, offset)
    const turn = history.processed(topic, partition, [Number(offset)])
    const turns = [...(waiting.get(name)?.turns ?? []), turn]
    waiting.set(name, { topic, partition, offset: offset + 1n, turns })
  }
  watch(consumer, value => {
    history.assign(value.flatMap(one => one.partitions.map(number => [one.topic, number])), consumer.memberId)
    for (const of of [waiting, reached]) {
      for (const name of of.keys()) {
        if (!history.owned.has(name)) {
          of.delete(name)
        }
      }
    }
    isBetween = false
    held.splice(0).forEach(processOne)
  })
  consumer.on('consumer:group:rebalance', () => {
    history.assign([], consumer.memberId)
    isBetween = true
  })
  consumer.on('consumer:heartbeat:error', ({ error }) => history.tell('heartbeat', { error: nameOf(error) }))
  consumer.on('error', error => history.tell('error', { error: nameOf(error) }))
  const stream = await consumer.consume({
    topics: [topic],
    mode: 'committed',
    fallbackMode: 'earliest',
    autocommit: false,
    maxWaitTime: 200
  })
  stream.on('data', message => (isBetween ? held.push(message) : processOne(message)))
  stream.on('error', error => {
    if (ending) {
      return // a fetch on its way that the close has cut off
    }
    history.tell('error', { error: nameOf(error) })
    console.error(error)
    process.exit(1)
  })
  const commit = async () => {
    if (isBetween || !waiting.size) {
      return
    }
    const ready = [...waiting.values()]
    waiting.clear()
    const turns = ready.flatMap(one => one.turns)
    const told = ready.map(({ topic, partition, offset }) => [topic, partition, Number(offset)])
    try {
      const offsets = ready.map(({ topic, partition, offset }) => ({ topic, partition, offset, leaderEpoch: 0 }))
      await consumer.commit({ offsets })
      history.committed(turns, told)
    } catch (error) {
      history.refused(turns, told, error)
      for (const one of ready) {
        const name = `${one.topic}:${one.partition}`
        const since = waiting.get(name) ?? { ...one, turns: [] }
        // Still its own: the next commit is for these records too.
        if (history.owned.has(name) || isBetween) {
          waiting.set(name, { ...since, turns: [...one.turns, ...since.turns] })
        }
      }
    }
  }
  const committer = (async () => {
    while (!ending) {
      await pause(COMMIT_PERIOD_MS)
      await commit()
    }
  })()
  await asked()
  stream.removeAllListeners('data')
  ending = true
  await committer
  await commit()
  history.assign([], consumer.memberId)
  await consumer.close(true)
  history.tell('closed')
}

export async function transact({ servers, topic, source, group, id }) {
  const options = { ...base(servers), idempotent: true, transactionalId: id }
  const producer = new Producer(options)
  // Each aborted transaction has its own producer: the client hides only the last one of a
  // producer in what it fetches at once; see FINDINGS.md.
  const another = name => new Producer({ ...options, transactionalId: `${id}-${name}` })
  const consumer = new Consumer({ ...base(servers), groupId: group })
  const stream = await consumer.consume({ topics: [source], mode: 'earliest', autocommit: false, maxWaitTime: 200 })
  const read = []
  for await (const message of stream) {
    read.push(message)
    if (read.length === 2) {
      break
    }
  }
  const send = (transaction, name) =>
    transaction.send({
      messages: [0, 1].flatMap(partition =>
        [1, 2, 3].map(n => ({ topic, partition, key: Buffer.from(name), value: Buffer.from(`${name} ${n}`) }))
      )
    })
  const first = await producer.beginTransaction()
  await send(first, 'first, committed')
  await first.commit()
  const second = await another('second').beginTransaction()
  await send(second, 'second, aborted')
  await second.abort()
  const third = await producer.beginTransaction()
  await send(third, 'third, committed with offsets')
  await third.addConsumer(consumer)
  await third.addOffset(read[0])
  await third.commit()
  const fourth = await another('fourth').beginTransaction()
  await send(fourth, 'fourth, aborted with offsets')
  await fourth.addConsumer(consumer)
  await fourth.addOffset(read[1])
  await fourth.abort()
  const fifth = await producer.beginTransaction()
  await send(fifth, 'fifth, fenced')
  // By default the client claims to have been producer 0, which the broker checks; see FINDINGS.md.
  const successorByDefault = await errorOf(new Producer(options).beginTransaction())
  const successor = new Producer({ ...options, producerId: -1n, producerEpoch: -1 })
  const sixth = await successor.beginTransaction()
  await send(sixth, 'sixth, committed')
  const fenced = await errorOf(fifth.commit())
  await sixth.commit()
  await consumer.close(true)
  return { fenced, successorByDefault }
}

export async function administer({ servers, topic, group }) {
  const admin = new Admin({ ...base(servers), retries: 1 })
  const told = {}
  const resource = { resourceType: ConfigResourceTypes.TOPIC, resourceName: topic }
  const retention = async () => {
    const [answer] = await admin.describeConfigs({ resources: [{ ...resource, configurationKeys: ['retention.ms'] }] })
    return answer.configs[0].value
  }
  const partitions = async () => {
    const metadata = await admin.metadata({ topics: [topic], forceUpdate: true })
    return metadata.topics.get(topic).partitionsCount
  }
  const listed = async () => (await admin.listTopics()).includes(topic)
  const newTopic = { topics: [topic], partitions: 3, replicas: 1, configs: [{ name: 'retention.ms', value: '3600000' }] }
  told.created = (await admin.createTopics(newTopic))[0].name === topic
  told.createdTwice = (await errorOf(admin.createTopics(newTopic))) === null
  told.listed = await until(listed, value => value)
  told.partitions = await until(partitions, number => number === 3)
  told.retention = await retention()
  await admin.incrementalAlterConfigs({
    resources: [
      {
        ...resource,
        configs: [{ name: 'retention.ms', configOperation: IncrementalAlterConfigOperationTypes.SET, value: '7200000' }]
      }
    ]
  })
  told.retentionAfter = await until(retention, value => value === '7200000')
  await admin.createPartitions({ topics: [{ name: topic, count: 5, assignments: null }] })
  told.partitionsAfter = await until(partitions, number => number === 5)
  told.brokers = (await admin.metadata({ topics: [] })).brokers.size
  const producer = new Producer(base(servers))
  await producer.send({ messages: [1, 2, 3, 4].map(n => ({ topic, partition: 0, value: Buffer.from(`${n}`) })) })
  await producer.close()
  const bound = async timestamp => {
    const [answer] = await admin.listOffsets({ topics: [{ name: topic, partitions: [{ partitionIndex: 0, timestamp }] }] })
    return answer.partitions[0].offset
  }
  const ends = async () => `${await bound(ListOffsetTimestamps.EARLIEST)} to ${await bound(ListOffsetTimestamps.LATEST)}`
  told.offsets = await ends()
  await admin.deleteRecords({ topics: [{ name: topic, partitions: [{ partition: 0, offset: 2n }] }] })
  told.offsetsAfter = await until(ends, value => value === '2 to 4')
  const state = async () => (await admin.describeGroups({ groups: [group] })).get(group).state
  await admin.alterConsumerGroupOffsets({
    groupId: group,
    topics: [{ name: topic, partitionOffsets: [{ partition: 0, offset: 3n }] }]
  })
  const [kept] = await admin.listConsumerGroupOffsets({ groups: [group] })
  told.committed = Number(kept.topics[0].partitions.find(one => one.partitionIndex === 0).committedOffset)
  told.groupListed = (await admin.listGroups()).has(group)
  told.groupState = await state()
  await admin.deleteGroups({ groups: [group] })
  told.groupListedAfter = (await admin.listGroups()).has(group)
  await admin.deleteTopics({ topics: [topic] })
  told.listedAfter = await until(listed, value => !value)
  told.deletedTwice = await errorOf(admin.deleteTopics({ topics: [topic] }))
  await admin.close()
  return told
}

export async function describe({ servers, group }) {
  const admin = new Admin(base(servers))
  const one = (await admin.describeGroups({ groups: [group] })).get(group)
  const members = [...one.members.values()].map(member => ({
    id: member.id,
    partitions: [...(member.assignments ?? new Map()).values()].flatMap(({ topic, partitions }) =>
      partitions.map(number => [topic, number])
    )
  }))
  await admin.close()
  return { state: one.state, members }
}
