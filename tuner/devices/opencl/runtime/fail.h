// Errors that reach Python as exceptions of the named kind, with one line.
#pragma once
#include <tvm/ffi/error.h>

#include <sstream>

namespace edgetune::opencl {

template <typename... Parts>
[[noreturn]] void Fail(const char* kind, const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw tvm::ffi::Error(kind, message.str(), "");
}

}  // namespace edgetune::opencl
