/* What the tables of an exported network are made of. They are written by tuner/export/source.py and read by
 * network.inc. Tensor and Any have the layouts of DLTensor (dlpack.h) and TVMFFIAny (tvm/ffi/c_api.h), which the kernels
 * take. */
#ifndef EDGETUNE_NETWORK_H_
#define EDGETUNE_NETWORK_H_

#include <stddef.h>
#include <stdint.h>

typedef struct {
  uint8_t code, bits;
  uint16_t lanes;
} DType;

typedef struct {
  void *data;
  int32_t device_type, device_id;
  int32_t rank;
  DType dtype;
  const int64_t *shape, *strides;
  uint64_t byte_offset;
} Tensor;

typedef struct {
  int32_t type;
  uint32_t zero;
  union {
    int64_t integer;
    const void *pointer;
  } value;
} Any;

enum { ANY_TENSOR = 7, DEVICE_CPU = 1 };

typedef int (*Kernel)(void *self, const Any *operands, int32_t count, Any *result);

/* Where a value lies. */
enum { IN_ARENA, IN_WEIGHTS, IN_INPUT, IN_OUTPUT, IN_DEVICE };

typedef struct {
  const int64_t *shape;
  int32_t rank;
  DType dtype;
  int32_t place;
  int32_t index; /* of the input or output */
  size_t offset; /* in the weights, or in the arena (of inputs and outputs too: where unaligned ones are copied) */
} Value;

#endif
