module fanin/app

go 1.19
