package main

import (
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"time"
)

// batchOf builds one record batch v2 of size bytes (a byte or two less where a varint grows just there), with a record for
// about each KiB. It returns the batch and the number of its records.
func batchOf(size int) ([]byte, int) {
	const header = 61
	count := max(1, size/1024)
	source := rand.New(rand.NewPCG(7, 11))
	batch := make([]byte, header, size)
	for i := range count {
		room := (size - len(batch)) / (count - i)
		// A record is a length, then attributes, time delta, offset delta, no key, the value's length, the value, no headers.
		value := room
		for recordSize(i, value) > room {
			value--
		}
		if i == count-1 { // the last one fills up what rounding left
			for recordSize(i, value+1) <= size-len(batch) {
				value++
			}
		}
		batch = appendRecord(batch, i, value, source)
	}
	now := time.Now().UnixMilli()
	binary.BigEndian.PutUint32(batch[8:], uint32(len(batch)-12))
	binary.BigEndian.PutUint32(batch[12:], 0xffffffff) // leader epoch: the server's business
	batch[16] = 2
	binary.BigEndian.PutUint32(batch[23:], uint32(count-1))
	binary.BigEndian.PutUint64(batch[27:], uint64(now))
	binary.BigEndian.PutUint64(batch[35:], uint64(now))
	for i := 43; i < 57; i++ { // no producer id, epoch, sequence
		batch[i] = 0xff
	}
	binary.BigEndian.PutUint32(batch[57:], uint32(count))
	binary.BigEndian.PutUint32(batch[17:], crc32.Checksum(batch[21:], crc32.MakeTable(crc32.Castagnoli)))
	return batch, count
}

func varintSize(x int64) int { return len(binary.AppendVarint(nil, x)) }

func recordBody(index, value int) int {
	return 1 + 1 + varintSize(int64(index)) + 1 + varintSize(int64(value)) + value + 1
}

func recordSize(index, value int) int {
	body := recordBody(index, value)
	return varintSize(int64(body)) + body
}

func appendRecord(to []byte, index, value int, source *rand.Rand) []byte {
	to = binary.AppendVarint(to, int64(recordBody(index, value)))
	to = append(to, 0, 0)
	to = binary.AppendVarint(to, int64(index))
	to = binary.AppendVarint(to, -1)
	to = binary.AppendVarint(to, int64(value))
	for range value {
		to = append(to, byte(source.Uint32()))
	}
	return append(to, 0)
}

// A frame is a request with its size in front. Offsets of what changes from request to request are kept beside it.
type frame struct {
	bytes       []byte
	partitionAt int
	offsetAt    int
}

func requestHeader(key, version uint16) []byte {
	b := make([]byte, 4)
	b = binary.BigEndian.AppendUint16(b, key)
	b = binary.BigEndian.AppendUint16(b, version)
	b = binary.BigEndian.AppendUint32(b, 0) // correlation id
	b = binary.BigEndian.AppendUint16(b, 5)
	b = append(b, "bench"...)
	return append(b, 0) // no tagged fields
}

func compactString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s)+1)), s...)
}

func (f *frame) finish() frame {
	binary.BigEndian.PutUint32(f.bytes, uint32(len(f.bytes)-4))
	return *f
}

func (f *frame) stamp(correlation, partition uint32, offset int64) {
	binary.BigEndian.PutUint32(f.bytes[8:], correlation)
	binary.BigEndian.PutUint32(f.bytes[f.partitionAt:], partition)
	if f.offsetAt > 0 {
		binary.BigEndian.PutUint64(f.bytes[f.offsetAt:], uint64(offset))
	}
}

// produceFrame is Produce v9 with one batch for one partition.
func produceFrame(topic string, acks int16, batch []byte) frame {
	b := requestHeader(0, 9)
	b = append(b, 0) // no transactional id
	b = binary.BigEndian.AppendUint16(b, uint16(acks))
	b = binary.BigEndian.AppendUint32(b, 30000)
	b = compactString(append(b, 2), topic)
	b = append(b, 2)
	f := frame{partitionAt: len(b)}
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.AppendUvarint(b, uint64(len(batch)+1))
	b = append(b, batch...)
	f.bytes = append(b, 0, 0, 0)
	return f.finish()
}

// fetchFrame is Fetch v12 for one partition, without a session.
func fetchFrame(topic string, maxBytes int) frame {
	b := requestHeader(1, 12)
	b = binary.BigEndian.AppendUint32(b, 0xffffffff) // a consumer
	b = binary.BigEndian.AppendUint32(b, 500)
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint32(b, 50<<20)
	b = append(b, 0)
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint32(b, 0xffffffff)
	b = compactString(append(b, 2), topic)
	b = append(b, 2)
	f := frame{partitionAt: len(b)}
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint32(b, 0xffffffff)
	f.offsetAt = len(b)
	b = binary.BigEndian.AppendUint64(b, 0)
	b = binary.BigEndian.AppendUint32(b, 0xffffffff)
	b = binary.BigEndian.AppendUint64(b, 0xffffffffffffffff)
	b = binary.BigEndian.AppendUint32(b, uint32(maxBytes))
	b = append(b, 0, 0, 1, 1, 0) // tags of partition and topic, no forgotten topics, no rack, tags
	f.bytes = b
	return f.finish()
}

// produceError finds the error code of a Produce v9 answer of one partition, given the topic's name.
func produceError(answer []byte, topic string) int16 {
	at := 4 + 1 + 1 + 1 + len(topic) + 1 + 4 // correlation, tags, topics, name (its length fits one byte), partitions, index
	if len(answer) < at+2 {
		return -1
	}
	return int16(binary.BigEndian.Uint16(answer[at:]))
}
