// The apache-tvm wheel ships tvm/runtime/tensor.h and timer.h without the tvm/support headers that these include. Here
// is what they use of them: declarations, none of which this library calls.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tvm {
namespace support {

template <typename T, typename = void>
struct Serializer {
  static constexpr bool enabled = false;
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual size_t Read(void* data, size_t size) = 0;
  virtual size_t Write(const void* data, size_t size) = 0;
  template <typename T>
  void Write(const T& value) {
    Write(static_cast<const void*>(&value), sizeof value);
  }
  template <typename T>
  void WriteArray(const T* values, size_t count) {
    Write(static_cast<const void*>(values), count * sizeof(T));
  }
  template <typename T>
  bool Read(T* value) {
    return ReadArray(value, 1);
  }
  template <typename T>
  bool ReadArray(T* values, size_t count) {
    return Read(static_cast<void*>(values), count * sizeof(T)) == count * sizeof(T);
  }
};

}  // namespace support
}  // namespace tvm
