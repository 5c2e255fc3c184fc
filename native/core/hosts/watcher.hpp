// A thread that ends waits which can't be left: while another thread waits for the wire, it looks at what could end that wait.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace phalanx {

class Watcher {
 public:
  // `look()` runs every 50 ms while somebody waits. It ends the wait if it has to.
  explicit Watcher(std::function<void()> look) : look_(std::move(look)) {}
  ~Watcher() { close(); }
  Watcher(const Watcher&) = delete;

  // Thread-safe. Throws std::system_error if there is no thread to be had.
  void begin();
  void end();
  // Ends the thread; not from within look().
  void close();
  // In a forked child the thread does not exist.
  void forget() noexcept;

 private:
  void work();

  std::function<void()> look_;
  std::mutex mutex_;  // guards all below
  std::condition_variable condition_;
  int num_waiting_ = 0;
  bool is_idle_ = false;
  bool is_closing_ = false;
  std::thread thread_;
};

}  // namespace phalanx
