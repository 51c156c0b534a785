#pragma once
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>

namespace essh {

// Appends lines to a file from a background thread: write() never waits for the disk.
class LineWriter {
 public:
  explicit LineWriter(const std::filesystem::path& path);
  // Writes the pending lines.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  void write(std::string line);
  // Returns when every line so far has been passed to the operating system.
  void flush();

 private:
  void work();

  std::ofstream out_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string waiting_;
  bool writing_ = false;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace essh
