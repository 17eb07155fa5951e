/* Blocks of the slot index: one for each batch, little-endian, 8-byte aligned.

       0  base offset int64        12 records uint32            20 flags uint32
       8  last delta uint32        16 CRC of the batch uint32

   then the records' slots (uint16), then, in a sparse block, their offset deltas (uint32), both
   padded with zeros. */

#ifndef ANABRANCH_INDEX_BLOCK_H
#define ANABRANCH_INDEX_BLOCK_H

#define BLOCK_HEADER_SIZE 24
#define FLAG_SPARSE 1
#define FLAG_CONTROL 2
#define FLAG_UNREADABLE 4

#endif
