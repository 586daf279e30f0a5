#include "binary_cache.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

namespace edgetune::opencl {

namespace {

namespace fs = std::filesystem;

constexpr char kMagic[] = "edgetune OpenCL binary 1\n";
constexpr uintmax_t kMostBytes = uintmax_t(256) << 20;
constexpr int kStoresPerSweep = 64;

uint64_t Hash(const std::string& text, uint64_t seed) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325 ^ seed;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

std::string FileName(const std::string& key) {
  char name[48];
  std::snprintf(name, sizeof name, "%016llx%016llx.bin", static_cast<unsigned long long>(Hash(key, 0)),
                static_cast<unsigned long long>(Hash(key, 0x9e3779b97f4a7c15)));
  return name;
}

std::string Number(uint64_t value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); }

// All of an entry but its check sum, which covers it.
std::string Entry(const std::string& key, const std::string& binary) {
  return kMagic + Number(key.size()) + key + Number(binary.size()) + binary;
}

// Removes the entries that have not been used for longest until a quarter of the space is free again.
void Sweep(const fs::path& folder) {
  struct File {
    fs::file_time_type used;
    uintmax_t size;
    fs::path path;
  };
  std::error_code ignored;
  std::vector<File> files;
  uintmax_t total = 0;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    std::error_code gone;  // another process sweeps too
    File file{entry.last_write_time(gone), entry.file_size(gone), entry.path()};
    if (gone) continue;
    total += file.size;
    files.push_back(std::move(file));
  }
  if (total <= kMostBytes) return;
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.used < b.used; });
  for (const File& file : files) {
    if (total <= kMostBytes / 4 * 3) return;
    fs::remove(file.path, ignored);
    total -= file.size;
  }
}

std::string DefaultFolder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return std::string(cache) + "/edgetune/opencl";
  const char* home = std::getenv("HOME");
  return home != nullptr && home[0] == '/' ? std::string(home) + "/.cache/edgetune/opencl" : "";
}

}  // namespace

BinaryCache::BinaryCache() : folder_(DefaultFolder()) {}

BinaryCache& BinaryCache::Global() {
  static auto* cache = new BinaryCache;
  return *cache;
}

void BinaryCache::SetFolder(std::string folder) {
  std::lock_guard<std::mutex> lock(mutex_);
  folder_ = std::move(folder);
}

std::string BinaryCache::folder() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return folder_;
}

std::optional<std::string> BinaryCache::Find(const std::string& key) const {
  const std::string where = folder();
  if (where.empty()) return std::nullopt;
  const fs::path path = fs::path(where) / FileName(key);
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  const std::string found((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::string head = kMagic + Number(key.size()) + key;
  const size_t start = head.size() + sizeof(uint64_t);
  if (found.size() < start + sizeof(uint64_t) || found.compare(0, head.size(), head) != 0) return std::nullopt;
  const std::string binary = found.substr(start, found.size() - start - sizeof(uint64_t));
  const std::string entry = Entry(key, binary);
  if (found != entry + Number(Hash(entry, 0))) return std::nullopt;
  std::error_code ignored;
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);  // for Sweep
  return binary;
}

void BinaryCache::Store(const std::string& key, const std::string& binary) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (folder_.empty()) return;
  std::error_code error;
  fs::create_directories(folder_, error);
  std::string temporary = (fs::path(folder_) / "new-XXXXXX").string();
  const int descriptor = mkstemp(temporary.data());
  if (descriptor < 0) return;
  const std::string entry = Entry(key, binary);
  const std::string bytes = entry + Number(Hash(entry, 0));
  const bool written = write(descriptor, bytes.data(), bytes.size()) == ssize_t(bytes.size());
  if (close(descriptor) == 0 && written) fs::rename(temporary, fs::path(folder_) / FileName(key), error);
  if (!written || error) fs::remove(temporary, error);
  if (stored_++ % kStoresPerSweep == 0) Sweep(folder_);
}

}  // namespace edgetune::opencl
