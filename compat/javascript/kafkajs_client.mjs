// kafkajs: protocol versions of about Kafka 2.x, gzip built in, other codecs by plug-in.

import zlib from 'node:zlib'

import { lz4Compress, lz4Decompress, snappyCompress, snappyDecompress } from '@platformatic/wasm-utils'
import kafkajs from 'kafkajs'

import { History, asked, bytes, errorOf, latin, nameOf, tellRecord, until } from './history.mjs'

const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = kafkajs

const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD
}
const codec = (compress, decompress) => () => ({
  compress: async encoder => Buffer.from(compress(encoder.buffer)),
  decompress: async buffer => Buffer.from(decompress(buffer))
})
CompressionCodecs[CompressionTypes.Snappy] = codec(snappyCompress, snappyDecompress)
CompressionCodecs[CompressionTypes.LZ4] = codec(lz4Compress, lz4Decompress)
if (zlib.zstdCompressSync) {
  CompressionCodecs[CompressionTypes.ZSTD] = codec(zlib.zstdCompressSync, zlib.zstdDecompressSync)
}

function client(servers, retries = 60) {
  return new Kafka({
    clientId: 'compat-kafkajs',
    brokers: [servers],
    logLevel: logLevel.WARN,
    logCreator: () => ({ log, label, namespace }) => console.error(label, namespace, log.message, log.error ?? ''),
    retry: { initialRetryTime: 100, maxRetryTime: 1000, retries }
  })
}

export async function produce({ servers, topic, codec, idempotent, records }) {
  const producer = client(servers).producer({ idempotent, maxInFlightRequests: idempotent ? 1 : null })
  await producer.connect()
  const messages = records.map(record => ({
    partition: record.partition,
    key: bytes(record.key),
    value: bytes(record.value),
    timestamp: String(record.timestamp),
    headers: Object.fromEntries(record.headers.map(([name, value]) => [name, bytes(value)]))
  }))
  const offsets = {}
  for (let first = 0; first < messages.length; first += 500) {
    const part = messages.slice(first, first + 500)
    for (const answer of await producer.send({ topic, acks: -1, compression: CODECS[codec], messages: part })) {
      offsets[answer.partition] ??= Number(answer.baseOffset)
    }
  }
  await producer.disconnect()
  return { offsets }
}

// A group of its own: kafkajs reads in no other way.
export async function walk({ servers, topic, count, committed, fetchBytes }) {
  const limits = fetchBytes ? { maxBytes: fetchBytes, maxBytesPerPartition: fetchBytes } : {}
  const groupId = `walk-${process.pid}-${Date.now()}`
  const consumer = client(servers).consumer({ groupId, maxWaitTimeInMs: 200, readUncommitted: !committed, ...limits })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  let seen = 0
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    const eachMessage = async ({ partition, message }) => {
      const headers = Object.entries(message.headers ?? {}).map(([name, value]) => [name, latin(value)])
      tellRecord(topic, partition, message.offset, message.timestamp, message.key, message.value, headers)
      if (++seen === count) {
        resolve()
      }
    }
    consumer.run({ autoCommit: false, eachMessage }).catch(reject)
  })
  await consumer.disconnect()
}

export async function member({ servers, group, topic, sessionMs }) {
  const history = new History()
  let consumer
  let ending = false
  const begin = async () => {
    consumer = client(servers).consumer({
      groupId: group,
      sessionTimeout: sessionMs,
      rebalanceTimeout: 20_000,
      heartbeatInterval: Math.floor(sessionMs / 6),
      maxWaitTimeInMs: 200
    })
    // When kafkajs gives up for good the application begins anew; see FINDINGS.md.
    await work(consumer, topic, history, () => ending || begin())
  }
  await begin()
  await asked()
  ending = true
  await consumer.stop()
  history.assign([], null)
  await consumer.disconnect()
  history.tell('closed')
}

async function work(consumer, topic, history, givenUp) {
  let memberId = ''
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    memberId = payload.memberId
    const told = Object.entries(payload.memberAssignment)
    history.assign(told.flatMap(([name, numbers]) => numbers.map(number => [name, number])), memberId)
    history.tell('joined', { generation: payload.generationId ?? null, leader: payload.isLeader })
  })
  consumer.on(consumer.events.REBALANCING, () => history.assign([], memberId))
  consumer.on(consumer.events.CRASH, ({ payload }) => {
    history.assign([], memberId)
    history.tell('crashed', { error: nameOf(payload.error), restart: payload.restart })
    if (!payload.restart) {
      givenUp()
    }
  })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat, isRunning, isStale }) => {
      if (!isRunning() || isStale()) {
        return
      }
      const { topic, partition } = batch
      const offsets = batch.messages.map(message => Number(message.offset))
      const turn = history.processed(topic, partition, offsets)
      const next = offsets.at(-1) + 1
      try {
        await consumer.commitOffsets([{ topic, partition, offset: String(next) }])
      } catch (error) {
        history.refused([turn], [[topic, partition, next]], error)
        throw error
      }
      history.committed([turn], [[topic, partition, next]])
      resolveOffset(String(next - 1))
      await heartbeat()
    }
  })
}

export async function transact({ servers, topic, source, group, id }) {
  const kafka = client(servers)
  const producer = kafka.producer({ transactionalId: id, idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const send = (transaction, name) =>
    transaction.send({
      topic,
      messages: [0, 1].flatMap(partition => [1, 2, 3].map(n => ({ partition, key: name, value: `${name} ${n}` })))
    })
  const offset = value => ({ consumerGroupId: group, topics: [{ topic: source, partitions: [{ partition: 0, offset: value }] }] })
  const first = await producer.transaction()
  await send(first, 'first, committed')
  await first.commit()
  const second = await producer.transaction()
  await send(second, 'second, aborted')
  await second.abort()
  const third = await producer.transaction()
  await send(third, 'third, committed with offsets')
  await third.sendOffsets(offset('1'))
  await third.commit()
  const fourth = await producer.transaction()
  await send(fourth, 'fourth, aborted with offsets')
  await fourth.sendOffsets(offset('2'))
  await fourth.abort()
  const fifth = await producer.transaction()
  await send(fifth, 'fifth, fenced')
  const successor = kafka.producer({ transactionalId: id, idempotent: true, maxInFlightRequests: 1 })
  await successor.connect()
  const sixth = await successor.transaction()
  await send(sixth, 'sixth, committed')
  const fenced = await errorOf(fifth.commit())
  await sixth.commit()
  return { fenced }
}

export async function administer({ servers, topic, group }) {
  const admin = client(servers, 3).admin()
  await admin.connect()
  const told = {}
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
  const retention = async () => {
    const answer = await admin.describeConfigs({ resources: [resource], includeSynonyms: false })
    return answer.resources[0].configEntries.find(entry => entry.configName === 'retention.ms').configValue
  }
  const partitions = async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length
  const newTopic = { topic, numPartitions: 3, configEntries: [{ name: 'retention.ms', value: '3600000' }] }
  told.created = await admin.createTopics({ topics: [newTopic], waitForLeaders: true })
  told.createdTwice = await admin.createTopics({ topics: [newTopic] })
  told.listed = (await admin.listTopics()).includes(topic)
  told.partitions = await until(partitions, number => number === 3)
  told.retention = await retention()
  await admin.alterConfigs({
    validateOnly: false,
    resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '7200000' }] }]
  })
  told.retentionAfter = await until(retention, value => value === '7200000')
  await admin.createPartitions({ topicPartitions: [{ topic, count: 5 }] })
  told.partitionsAfter = await until(partitions, number => number === 5)
  told.brokers = (await admin.describeCluster()).brokers.length
  const producer = client(servers).producer()
  await producer.connect()
  await producer.send({ topic, messages: [1, 2, 3, 4].map(n => ({ partition: 0, value: `${n}` })) })
  await producer.disconnect()
  const ends = async () => {
    const { low, high } = (await admin.fetchTopicOffsets(topic)).find(one => one.partition === 0)
    return `${low} to ${high}`
  }
  told.offsets = await ends()
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '2' }] })
  told.offsetsAfter = await until(ends, value => value === '2 to 4')
  const state = async () => (await admin.describeGroups([group])).groups[0].state
  await admin.setOffsets({ groupId: group, topic, partitions: [{ partition: 0, offset: '3' }] })
  const kept = await admin.fetchOffsets({ groupId: group, topics: [topic] })
  told.committed = Number(kept[0].partitions.find(one => one.partition === 0).offset)
  told.groupListed = (await admin.listGroups()).groups.some(one => one.groupId === group)
  told.groupState = await state()
  await admin.deleteGroups([group])
  told.groupListedAfter = (await admin.listGroups()).groups.some(one => one.groupId === group)
  await admin.deleteTopics({ topics: [topic] })
  told.listedAfter = await until(async () => (await admin.listTopics()).includes(topic), listed => !listed)
  told.deletedTwice = await errorOf(admin.deleteTopics({ topics: [topic] }))
  await admin.disconnect()
  return told
}

export async function describe({ servers, group }) {
  const admin = client(servers, 3).admin()
  await admin.connect()
  const [one] = (await admin.describeGroups([group])).groups
  const members = one.members.map(member => {
    const { assignment } = kafkajs.AssignerProtocol.MemberAssignment.decode(member.memberAssignment)
    const partitions = Object.entries(assignment).flatMap(([name, numbers]) => numbers.map(number => [name, number]))
    return { id: member.memberId, partitions }
  })
  await admin.disconnect()
  return { state: one.state, members }
}

