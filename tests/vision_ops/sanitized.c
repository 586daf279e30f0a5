/* Calls a kernel that TVM wrote in C, on operands from a file, with every buffer and workspace in a block of its own, so
 * that AddressSanitizer sees whatever is read or written outside. Usage: program FILE. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <tvm/ffi/c_api.h>
#include <tvm/runtime/c_backend_api.h>

enum { kMostOperands = 16, kMostAxes = 8, kAlignment = 64 };

int32_t __tvm_ffi_main(void* self, void* args, int32_t count, void* result);

static void* Block(uint64_t bytes) {
  void* found = NULL;
  return posix_memalign(&found, kAlignment, bytes ? bytes : 1) == 0 ? found : NULL;
}

void* TVMBackendAllocWorkspace(int type, int id, uint64_t bytes, int code, int bits) { return Block(bytes); }

int TVMBackendFreeWorkspace(int type, int id, void* block) {
  free(block);
  return 0;
}

static int64_t Number(FILE* file) {
  int64_t value;
  if (fread(&value, sizeof value, 1, file) != 1) exit(3);
  return value;
}

int main(int argc, char** argv) {
  static int64_t shapes[kMostOperands][kMostAxes];
  static DLTensor tensors[kMostOperands];
  static TVMFFIAny args[kMostOperands], result;
  FILE* file = argc == 2 ? fopen(argv[1], "rb") : NULL;
  if (file == NULL) return 3;
  const int64_t count = Number(file);
  for (int64_t i = 0; i < count; ++i) {
    DLTensor* t = &tensors[i];
    t->device = (DLDevice){kDLCPU, 0};
    t->dtype.code = (uint8_t)Number(file);
    t->dtype.bits = (uint8_t)Number(file);
    t->dtype.lanes = 1;
    t->ndim = (int32_t)Number(file);
    t->shape = shapes[i];
    uint64_t bytes = t->dtype.bits / 8;
    for (int32_t axis = 0; axis < t->ndim; ++axis) bytes *= (uint64_t)(shapes[i][axis] = Number(file));
    t->data = Block(bytes);
    if (fread(t->data, 1, bytes, file) != bytes) return 3;
    args[i].type_index = kTVMFFIDLTensorPtr;
    args[i].v_ptr = t;
  }
  fclose(file);
  return __tvm_ffi_main(NULL, args, (int32_t)count, &result) == 0 ? 0 : 2;
}
