// TVM's module of OpenCL C: created by its code generator, saved into and loaded from libraries.
#include <tvm/ffi/cast.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/accessor.h>
#include <tvm/ffi/reflection/registry.h>

#include <cstring>
#include <map>

#include "fail.h"
#include "kernel.h"

namespace edgetune::opencl {

namespace ffi = tvm::ffi;

using KernelInfos = std::map<std::string, KernelInfo>;

// The bytes of a saved module, as TVM's own OpenCL runtime writes them: 64-bit counts, little endian.
class Writer {
 public:
  void Number(uint64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void Text(const std::string& text) {
    Number(text.size());
    bytes_ += text;
  }
  template <typename T>
  void Array(const std::vector<T>& values) {
    Number(values.size());
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  void Texts(const std::vector<std::string>& texts) {
    Number(texts.size());
    for (const std::string& text : texts) Text(text);
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(const ffi::Bytes& bytes) : at_(bytes.data()), left_(bytes.size()) {}

  // Counts of what takes at least a byte each.
  uint64_t Number() {
    uint64_t value;
    Raw(&value, sizeof value);
    if (value > left_) Truncated();
    return value;
  }
  std::string Text() {
    std::string text(Number(), '\0');
    Raw(text.data(), text.size());
    return text;
  }
  template <typename T>
  std::vector<T> Array() {
    std::vector<T> values(Number());
    Raw(values.data(), values.size() * sizeof(T));
    return values;
  }
  std::vector<std::string> Texts() {
    std::vector<std::string> texts(Number());
    for (std::string& text : texts) text = Text();
    return texts;
  }

 private:
  void Raw(void* to, size_t size) {
    if (size > left_) Truncated();
    if (size > 0) std::memcpy(to, at_, size);
    at_ += size;
    left_ -= size;
  }
  [[noreturn]] void Truncated() { Fail("ValueError", "the saved OpenCL module is truncated or damaged"); }

  const char* at_;
  size_t left_;
};

class OpenCLModule final : public ffi::ModuleObj {
 public:
  OpenCLModule(const std::string& format, std::string source, KernelInfos infos)
      : programs_(std::make_shared<Programs>(std::move(source))), infos_(std::move(infos)) {
    if (format != "cl") Fail("ValueError", "an OpenCL module of format '", format, "' is not supported");
  }

  const char* kind() const final { return "opencl"; }
  int GetPropertyMask() const final { return ffi::Module::kBinarySerializable | ffi::Module::kRunnable; }
  ffi::String InspectSource(const ffi::String&) const final { return ffi::String(programs_->source()); }
  bool ImplementsFunction(const ffi::String& name) final { return infos_.count(std::string(name)) != 0; }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    const std::string key(name);
    auto info = infos_.find(key);
    if (info == infos_.end()) return std::nullopt;
    std::lock_guard<std::mutex> lock(mutex_);
    auto& kernel = kernels_[key];
    if (kernel == nullptr) kernel = std::make_shared<Kernel>(info->second, programs_);
    return ffi::Function::FromPacked([kernel](ffi::PackedArgs call, ffi::Any*) { kernel->Launch(call); });
  }

  ffi::Bytes SaveToBytes() const final {
    Writer writer;
    writer.Text("cl");
    writer.Number(infos_.size());
    for (const auto& [key, info] : infos_) {
      writer.Text(key);
      writer.Text(info.name);
      writer.Array(info.arguments);
      writer.Texts(info.launch_parameters);
      writer.Array(info.argument_tags);
    }
    writer.Text(programs_->source());
    return ffi::Bytes(writer.Take());
  }

  static ffi::Module Load(const ffi::Bytes& bytes) {
    Reader reader(bytes);
    const std::string format = reader.Text();
    KernelInfos infos;
    for (uint64_t left = reader.Number(); left > 0; --left) {
      std::string key = reader.Text();
      KernelInfo& info = infos[std::move(key)];
      info.name = reader.Text();
      info.arguments = reader.Array<DLDataType>();
      info.launch_parameters = reader.Texts();
      info.argument_tags = reader.Array<int32_t>();
    }
    return ffi::Module(ffi::make_object<OpenCLModule>(format, reader.Text(), std::move(infos)));
  }

  // Called by the code generator. Its descriptions of kernels are read by reflection: their class is not public.
  static ffi::Module Create(const ffi::Bytes& code, const ffi::String& format,
                            const ffi::Map<ffi::String, ffi::ObjectRef>& descriptions,
                            const ffi::Map<ffi::String, ffi::String>&) {
    using ffi::reflection::FieldGetter;
    static const FieldGetter name("runtime.FunctionInfo", "name"), arguments("runtime.FunctionInfo", "arg_types"),
        parameters("runtime.FunctionInfo", "launch_param_tags");
    KernelInfos infos;
    for (const auto& [key, description] : descriptions) {
      KernelInfo& info = infos[std::string(key)];
      info.name = std::string(name(description.get()).cast<ffi::String>());
      for (DLDataType type : arguments(description.get()).cast<ffi::Array<DLDataType>>())
        info.arguments.push_back(type);
      for (const ffi::String& tag : parameters(description.get()).cast<ffi::Array<ffi::String>>())
        info.launch_parameters.push_back(std::string(tag));
    }
    return ffi::Module(
        ffi::make_object<OpenCLModule>(std::string(format), std::string(code.data(), code.size()), std::move(infos)));
  }

 private:
  const std::shared_ptr<Programs> programs_;
  const KernelInfos infos_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Kernel>> kernels_;
};

}  // namespace edgetune::opencl
