#include "essh/base/line_writer.h"

#include "essh/base/error.h"
#include "essh/base/log.h"

namespace essh {

LineWriter::LineWriter(const std::filesystem::path& path) : out_(path, std::ios::app) {
  if (!out_) fail(ErrorKind::BadFile, "{}: cannot be written", path.string());
  thread_ = std::thread([this, name = path.string()] {
    work();
    if (!out_) log::warn("{}: lines were lost, it could not be written", name);
  });
}

LineWriter::~LineWriter() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LineWriter::write(std::string line) {
  {
    const std::scoped_lock lock(mutex_);
    waiting_ += line + '\n';
  }
  changed_.notify_all();
}

void LineWriter::flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return waiting_.empty() && !writing_; });
}

void LineWriter::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !waiting_.empty() || ending_; });
    if (waiting_.empty()) return;
    std::string lines;
    lines.swap(waiting_);
    writing_ = true;
    lock.unlock();
    out_ << lines << std::flush;
    lock.lock();
    writing_ = false;
    changed_.notify_all();
  }
}

}  // namespace essh
