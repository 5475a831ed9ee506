"""Sends a Python's command line to the fork server, passes on signals, and ends as it did.

It is run as ``python -IS fork_client.py SOCKET ARGUMENTS``.
"""

import json
import os
import signal
import socket
import struct
import sys

connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
request = json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(connection, [struct.pack("!I", len(request))], [0, 1, 2])
connection.sendall(request)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: connection.sendall(bytes([number])))
(status,) = struct.unpack("!i", connection.recv(4))
if status < 0:
    if status != -signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
