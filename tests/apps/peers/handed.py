"""What is met behind a listening socket that was handed from one program to another.

`accept` has it as its standard input and serves one connection; `ask HOST PORT TEXT` sends a text and prints the answer;
`mail HOST IMAP POP USERS ROUNDS` puts mail into mailboxes, several at a time, and takes it out again.
"""

import imaplib
import poplib
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

SECONDS = 10
LETTER = b"Subject: a letter\r\n\r\n" + b"and its text, which is long enough for several segments\r\n" * 1000


def accept():
    listener = socket.socket(fileno=0)
    connection, _ = listener.accept()
    with connection:
        while data := connection.recv(4096):
            connection.sendall(data.upper())


def ask(host, port, text):
    with socket.create_connection((host, int(port)), SECONDS) as connection:
        connection.sendall(text.encode())
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while data := connection.recv(4096):
            answer += data
    print(answer.decode())


def mail(host, imap, pop, users, rounds):
    def one(number):
        for _ in range(int(rounds)):
            box = imaplib.IMAP4(host, int(imap), timeout=SECONDS)
            box.login(f"user{number}", "word")
            box.append("INBOX", None, None, LETTER)
            _, count = box.select("INBOX")
            _, found = box.fetch(count[0].decode(), "(RFC822)")
            assert found[0][1] == LETTER, len(found[0][1])
            box.logout()
            drop = poplib.POP3(host, int(pop), timeout=SECONDS)
            drop.user(f"user{number}")
            drop.pass_("word")
            lines = drop.retr(drop.stat()[0])[1]
            assert b"\r\n".join(lines) + b"\r\n" == LETTER, len(lines)
            drop.quit()

    with ThreadPoolExecutor(int(users)) as pool:
        list(pool.map(one, range(int(users))))
    print("done")


{"accept": accept, "ask": ask, "mail": mail}[sys.argv[1]](*sys.argv[2:])
