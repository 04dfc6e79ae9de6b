// Integers of a fixed size for NVRTC, which brings no standard headers.
#ifndef BLINK_NVRTC_STDINT_H
#define BLINK_NVRTC_STDINT_H

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;

#define UINT64_C(value) value##UL

static_assert(sizeof(int64_t) == 8 && sizeof(uintptr_t) == 8, "a target whose long has 64 bits");

#endif  // BLINK_NVRTC_STDINT_H
