/* CRC-32C, with the processor's instructions where it has them. */

#ifndef ANABRANCH_CRC32C_H
#define ANABRANCH_CRC32C_H

#include "bytes.h"

extern uint32_t (*crc32c)(Bytes p, size_t size);

/* Call it once before the first CRC. */
void prepare_crc(void);

#endif
