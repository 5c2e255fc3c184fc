// A switch in user space. Each port is a TAP device, whose other side is the network interface of a host in the bed. The link
// between a host and the switch has a rate and a one-way delay in each direction, and can be cut or made to lose packets.
//
//     switch BITS_PER_S DELAY_US DEVICE...
//
// makes the devices in its own network namespace and prints "ready". It then obeys one command per line of its standard
// input, and answers each with one line:
//
//     cut P      the cable is pulled: the host sees that it has no carrier       mend P     the cable is put back
//     lose P     everything to and from the host is lost, and nobody is told     pass P     no longer
//     bytes P    "ok SENT RECEIVED": the bytes of the frames that have left the host, and that have reached it
//
// It ends at the end of its standard input, and the devices with it.
//
// The devices hand over TCP segments of up to 64 KiB before they are divided (TUN_F_TSO4), so one core carries several
// Gbit/s. A frame that the host has to keep back stays in the host's own queue: the switch does not read a device whose
// link is still busy with the last frame. So TCP sees the rate as back-pressure, as with real hardware.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/ethtool.h>
#include <linux/if_tun.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
  kMaxPorts = 16,
  kVirtioHeader = 10,  // in front of each frame: how far the kernel has come with checksums and segments
  kMaxFrame = kVirtioHeader + 14 + 65536,
  kMacBytes = 6,
  kQueueBytes = 4 << 20,  // what a port of the switch keeps before it drops frames
  kCatchUpNs = 200000,    // a switch that was scheduled late makes up for this much
  kRealTimePriority = 10,
};

typedef struct Frame {
  struct Frame* next;
  int64_t due;  // when its last bit reaches the host
  int length;
  char data[];
} Frame;

typedef struct {
  int device;
  int is_cut, loses;
  int64_t upward_free, downward_free;  // when the link has sent what it was given
  Frame *first, **last;                // frames on their way to the host
  int64_t queued_bytes;
  uint64_t sent, received;  // bytes of frames, as the host counts them
  unsigned char mac[kMacBytes];
} Port;

static Port ports[kMaxPorts];
static int num_ports;
static double ns_per_byte;
static int64_t delay_ns;

static int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

// The host finds the rate where it finds that of a real interface: in /sys/class/net/eth0/speed.
static void tell_speed(const char* name, double bits_per_s) {
  struct ethtool_cmd settings = {.cmd = ETHTOOL_SSET, .duplex = DUPLEX_FULL, .autoneg = AUTONEG_DISABLE};
  ethtool_cmd_speed_set(&settings, (uint32_t)(bits_per_s / 1e6));
  struct ifreq request = {.ifr_data = (void*)&settings};
  snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
  const int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ioctl(any, SIOCETHTOOL, &request);  // an old kernel refuses; then the host believes in 10 Gbit/s
  close(any);
}

static void open_port(Port* port, const char* name) {
  struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
  snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
  port->device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (port->device < 0 || ioctl(port->device, TUNSETIFF, &request) < 0 ||
      ioctl(port->device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) < 0) {
    fprintf(stderr, "the TAP device %s can't be made: %s\n", name, strerror(errno));
    exit(1);
  }
  port->last = &port->first;
}

static int is_dead(const Port* port) { return port->is_cut || port->loses; }

// A frame whose first bit reaches the switch now leaves it on a link that is `takes_ns` busy with it.
static void send_down(Port* to, const char* data, int length, int64_t arrives, int64_t takes_ns) {
  if (is_dead(to) || to->queued_bytes + length > kQueueBytes) return;
  Frame* frame = malloc(sizeof *frame + length);
  if (frame == NULL) return;  // lost, as by any switch that has no memory left
  to->downward_free = later(arrives, to->downward_free + takes_ns);
  *frame = (Frame){.due = to->downward_free, .length = length};
  memcpy(frame->data, data, length);
  *to->last = frame;
  to->last = &frame->next;
  to->queued_bytes += length;
}

static Port* find_owner(const unsigned char* mac) {
  for (int i = 0; i < num_ports; i++)
    if (memcmp(ports[i].mac, mac, kMacBytes) == 0) return &ports[i];
  return NULL;
}

static void distribute(const Port* from, const char* data, int length, int64_t arrives, int64_t takes_ns) {
  const unsigned char* target = (const unsigned char*)data + kVirtioHeader;
  const int is_for_all = target[0] & 1;
  Port* owner = is_for_all ? NULL : find_owner(target);
  for (Port* to = ports; to < ports + num_ports; to++)
    if (to != from && (owner == NULL || owner == to)) send_down(to, data, length, arrives, takes_ns);
}

static void take_from(Port* from) {
  static char buffer[kMaxFrame];
  for (int64_t now = now_ns(); from->upward_free <= now; now = now_ns()) {
    const int length = (int)read(from->device, buffer, sizeof buffer);
    if (length <= kVirtioHeader + 2 * kMacBytes) return;
    const int64_t takes_ns = (int64_t)((length - kVirtioHeader) * ns_per_byte);
    from->upward_free = later(from->upward_free, now - kCatchUpNs) + takes_ns;
    if (is_dead(from)) continue;
    from->sent += length - kVirtioHeader;
    memcpy(from->mac, buffer + kVirtioHeader + kMacBytes, kMacBytes);
    distribute(from, buffer, length, later(from->upward_free, now) + delay_ns, takes_ns);
  }
}

static Frame* remove_first(Port* port) {
  Frame* frame = port->first;
  port->first = frame->next;
  if (port->first == NULL) port->last = &port->first;
  port->queued_bytes -= frame->length;
  return frame;
}

static void deliver_to(Port* to) {
  while (to->first != NULL && to->first->due <= now_ns()) {
    Frame* frame = remove_first(to);
    // A host that has not switched its interface on, or has no memory, loses the frame.
    if (!is_dead(to) && write(to->device, frame->data, frame->length) == frame->length)
      to->received += frame->length - kVirtioHeader;
    free(frame);
  }
}

static void set_carrier(Port* port, int is_on) {
  ioctl(port->device, TUNSETCARRIER, &is_on);
  port->is_cut = !is_on;
}

static void obey(const char* line) {
  char word[16];
  int number;
  if (sscanf(line, "%15s %d", word, &number) != 2 || number < 0 || number >= num_ports) {
    printf("no: give a command and a port from 0 to %d\n", num_ports - 1);
    return;
  }
  Port* port = &ports[number];
  if (strcmp(word, "cut") == 0) {
    set_carrier(port, 0);
  } else if (strcmp(word, "mend") == 0) {
    set_carrier(port, 1);
  } else if (strcmp(word, "lose") == 0) {
    port->loses = 1;
  } else if (strcmp(word, "pass") == 0) {
    port->loses = 0;
  } else if (strcmp(word, "bytes") == 0) {
    printf("ok %" PRIu64 " %" PRIu64 "\n", port->sent, port->received);
    return;
  } else {
    printf("no: %s is not a command\n", word);
    return;
  }
  puts("ok");
}

static void obey_all(void) {
  static char text[4096];
  static size_t held;
  const ssize_t added = read(STDIN_FILENO, text + held, sizeof text - 1 - held);
  if (added <= 0) exit(0);
  held += added;
  text[held] = '\0';
  char* line = text;
  for (char* end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
    *end = '\0';
    obey(line);
  }
  held = strlen(line);
  memmove(text, line, held);
  fflush(stdout);
}

// Sleeps until a command comes, a frame is due, a link is free again, or a host sends on a link that is free.
static void wait_for_work(void) {
  struct pollfd waits[1 + kMaxPorts] = {{.fd = STDIN_FILENO, .events = POLLIN}};
  const int64_t now = now_ns();
  int64_t next = INT64_MAX;
  for (int i = 0; i < num_ports; i++) {
    const int is_free = ports[i].upward_free <= now;
    waits[1 + i] = (struct pollfd){.fd = ports[i].device, .events = is_free ? POLLIN : 0};
    if (!is_free) next = earlier(next, ports[i].upward_free);
    if (ports[i].first != NULL) next = earlier(next, ports[i].first->due);
  }
  const int64_t left = later(0, next - now);
  const struct timespec patience = {left / 1000000000, left % 1000000000};
  ppoll(waits, 1 + num_ports, next == INT64_MAX ? NULL : &patience, NULL);
  if (waits[0].revents != 0) obey_all();
}

// A real switch does not wait for a core. Where this is not permitted, the bed is only slower.
static void run_ahead_of_others(void) {
  const struct sched_param priority = {.sched_priority = kRealTimePriority};
  sched_setscheduler(0, SCHED_FIFO, &priority);
  prctl(PR_SET_TIMERSLACK, 1);
}

int main(int num_arguments, char** arguments) {
  if (num_arguments < 4 || num_arguments > 3 + kMaxPorts) {
    fprintf(stderr, "usage: switch BITS_PER_S DELAY_US DEVICE... (%d devices at most)\n", kMaxPorts);
    return 2;
  }
  ns_per_byte = 8e9 / atof(arguments[1]);
  delay_ns = (int64_t)(atof(arguments[2]) * 1000);
  for (int i = 3; i < num_arguments; i++) {
    open_port(&ports[num_ports++], arguments[i]);
    tell_speed(arguments[i], atof(arguments[1]));
  }
  run_ahead_of_others();
  puts("ready");
  fflush(stdout);
  for (;;) {
    for (Port* port = ports; port < ports + num_ports; port++) take_from(port);
    for (Port* port = ports; port < ports + num_ports; port++) deliver_to(port);
    wait_for_work();
  }
}
