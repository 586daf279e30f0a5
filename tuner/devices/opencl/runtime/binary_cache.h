// Compiled programs on disk: $XDG_CACHE_HOME/edgetune/opencl, by default under ~/.cache. A cache that cannot be read or
// written costs time, never a result: whatever is wrong with an entry, it is as if there were none.
#pragma once
#include <mutex>
#include <optional>
#include <string>

namespace edgetune::opencl {

class BinaryCache {
 public:
  static BinaryCache& Global();

  // An empty folder turns the cache off.
  void SetFolder(std::string folder);
  std::string folder() const;

  // `key` is everything that the binary depends on; an entry holds it in full, so that two keys are never mixed up.
  std::optional<std::string> Find(const std::string& key) const;
  void Store(const std::string& key, const std::string& binary);

 private:
  BinaryCache();

  mutable std::mutex mutex_;
  std::string folder_;
  int stored_ = 0;
};

}  // namespace edgetune::opencl
